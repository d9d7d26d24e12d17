"""A merged model: the base with the adapter in its weights, which plain transformers loads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import InputError
from grpo.policy import adapter_config, load_tokenizer, loading

if TYPE_CHECKING:
    from peft import PeftModel


def merge_adapter(adapter: Path, output: Path, model: str | None = None, dtype: str = "auto") -> Path:
    """Write the merged model and its tokenizer to `output`, all of it or nothing.

    The base is the one that the adapter names, unless `model` (a folder or a Hub id) does. `dtype` is that of the
    weights written, "auto" that of the base's files; the product of the adapter is added in float32, which takes
    4 bytes of CPU memory a parameter.

    Raises InputError where the adapter or its base cannot be loaded, the base is quantised, or `output` is not empty
    or cannot be written.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    path = model or adapter_config(adapter, str(adapter)).get("base_model_name_or_path")
    if not path:
        raise InputError(f"{adapter}: it does not name its base model: give --model")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file: choose another folder")
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} is not empty: choose another folder")
    config, tokenizer = load_tokenizer(path)
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"--model {path} is quantised: give the model that it was made from")
    wanted = getattr(torch, dtype) if dtype != "auto" else (config.dtype or torch.float32)
    with loading(path):
        base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    try:
        adapted = PeftModel.from_pretrained(base, str(adapter))
        untie_adapted(adapted)
        merged = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError) as error:
        raise InputError(f"{adapter} cannot be merged into {path}: {str(error).splitlines()[0]}") from error
    staged = output.with_name(f".{output.name}.new")
    try:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        merged.to(wanted).save_pretrained(str(staged))
        tokenizer.save_pretrained(str(staged))
        if output.exists():
            output.rmdir()
        os.replace(staged, output)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return output


def untie_adapted(model: PeftModel) -> None:
    """Where one weight is both head and embeddings, and one of them is adapted, make it two: the merged ones differ."""
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    base = model.get_base_model()
    head, embeddings = base.get_output_embeddings(), base.get_input_embeddings()
    if not any(isinstance(module, BaseTunerLayer) for module in (head, embeddings)):
        return
    if head.weight is embeddings.weight:
        layer = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        layer.weight = torch.nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = False
