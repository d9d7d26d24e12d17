"""A merged model: the base with the adapter in its weights, which plain transformers loads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from grpo.errors import InputError
from grpo.policy import load_tokenizer


def merge_adapter(adapter: Path, output: Path, model: str | None = None, dtype: str = "auto") -> Path:
    """Write the merged model and its tokenizer to `output`, all of it or nothing.

    The base is the one that the adapter names, unless `model` (a folder or a Hub id) does. `dtype` is that of the
    weights written, "auto" that of the base's files; the product of the adapter is added in float32.
    Raises InputError where the adapter or its base cannot be loaded, or `output` is not empty.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    try:
        named = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{adapter}: there is no adapter_config.json that can be read: {error}") from error
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is not empty: choose another folder")
    path = model or named["base_model_name_or_path"]
    config, tokenizer = load_tokenizer(path)
    wanted = getattr(torch, dtype) if dtype != "auto" else (config.dtype or torch.float32)
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    try:
        merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError) as error:
        raise InputError(f"{adapter} cannot be merged into {path}: {str(error).splitlines()[0]}") from error
    staged = output.with_name(f".{output.name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        merged.to(wanted).save_pretrained(str(staged))
        tokenizer.save_pretrained(str(staged))
        if output.exists():
            output.rmdir()
        os.replace(staged, output)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return output
