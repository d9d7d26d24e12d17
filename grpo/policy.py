"""The policy: a frozen causal LM with LoRA adapters, its tokenizer, and what it makes of its completions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.batch import Batch, positions
from grpo.errors import InputError

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from grpo.config import TrainConfig
    from grpo_kernels import LMHead

# The name of a causal LM's cache, in its output and among its arguments, in newer and older transformers.
CACHE_NAMES = ("cache", "past_key_values")


@dataclass(frozen=True)
class Policy:
    """The model stays in evaluation mode: no pass has dropout, so the ratio starts at exactly 1."""

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    pad_id: int  # fills padding; may be an id with a meaning, since masks come from lengths
    device: torch.device

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained: the adapters, in float32."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def is_sharded(self) -> bool:
        """Whether every process holds a part of the parameters (FSDP2)."""
        return any(hasattr(p, "full_tensor") for p in self.parameters())

    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits [B, T, V] that predict the completion tokens of `batch`, at temperature 1.

        Prompts are run once each; their keys and values serve all their completions, gradients included.
        """
        length = batch.completion_ids.shape[1]
        ids, mask = whole_sequences(batch)
        cache = self.prompt_cache(batch.prompt_ids, batch.prompt_mask, batch.prompt_rows)
        # The last token predicts nothing that is wanted; each token is predicted at the position before it.
        logits = self.forward(ids[:, :-1], mask[:, :-1], kept=length, cache=cache).logits
        # The backward pass of a slice, even of all rows, would allocate the gradient of the whole once more.
        return logits if logits.shape[1] == length else logits[:, -length:]

    def hidden_states(self, batch: Batch) -> torch.Tensor:
        """Hidden states [B, T, D] that `head` turns into `logits`; prompts are shared in the same way.

        Raises UnsupportedHeadError for what `grpo_kernels.find_lm_head` refuses.
        """
        from grpo_kernels import completion_hidden_states

        length = batch.completion_ids.shape[1]
        ids, mask = whole_sequences(batch)
        cache = self.prompt_cache(batch.prompt_ids, batch.prompt_mask, batch.prompt_rows)
        new = slice(-length - 1, None) if cache else slice(None)
        return completion_hidden_states(
            self.model,
            ids[:, new],
            mask,
            length,
            position_ids=positions(mask)[:, new],
            use_cache=bool(cache),
            **cache,
        )

    def head(self) -> LMHead:
        """The output head as the adapters have it now, in or out of `as_reference`."""
        from grpo_kernels import find_lm_head

        return find_lm_head(self.model)

    def prompt_cache(self, prompt_ids: torch.Tensor, prompt_mask: torch.Tensor, rows: torch.Tensor) -> dict[str, Any]:
        """The cache argument of a forward pass or `generate`: prompt rows[b] without its last token, for every b.

        `prompt_ids` and `prompt_mask` are [Q, P]. Empty where no prompt is used twice, where prompts have one
        token, and where the model's cache is not one of plain keys and values.
        """
        from transformers.cache_utils import DynamicCache, DynamicLayer

        if prompt_ids.shape[1] < 2 or len(rows) == len(prompt_ids):
            return {}
        output = self.forward(prompt_ids[:, :-1], prompt_mask[:, :-1], kept=1, use_cache=True)
        name = next((name for name in CACHE_NAMES if name in output), None)
        cache = output[name] if name else None
        if not isinstance(cache, DynamicCache) or {type(layer) for layer in cache.layers} != {DynamicLayer}:
            return {}
        cache.batch_select_indices(rows)
        return {str(name): cache}

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        kept: int,
        cache: dict[str, Any] | None = None,
        use_cache: bool = False,
    ) -> Any:
        """The model's output on ids [B, S]; its last `kept` logits, or all, where it cannot choose.

        With a `cache`, only the last `kept` ids are run.
        """
        new = slice(-kept, None) if cache else slice(None)
        accepted = inspect.signature(self.model.get_base_model().forward).parameters
        options = {"position_ids": positions(mask)[:, new], "logits_to_keep": kept}
        return self.model(
            input_ids=ids[:, new],
            attention_mask=mask,
            use_cache=use_cache or bool(cache),
            **{name: value for name, value in options.items() if name in accepted},
            **(cache or {}),
        )

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Inside, passes are those of the gradient."""
        yield

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """Inside, the model is the base model: adapters off, no gradients."""
        import torch

        with torch.no_grad(), self.model.disable_adapter():
            yield


def whole_sequences(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask), [B, P + T] each: every completion behind its prompt."""
    import torch

    ids = torch.cat((batch.prompt_ids[batch.prompt_rows], batch.completion_ids), dim=1)
    return ids, torch.cat((batch.prompt_mask[batch.prompt_rows], batch.completion_mask), dim=1)


def model_path(config: TrainConfig) -> str:
    """The absolute folder of a local model, or the Hub id."""
    if config.model is None:
        from grpo.embedded import MODEL_PATH

        return str(MODEL_PATH)
    path = Path(config.model).expanduser()
    return str(path.resolve()) if path.exists() else config.model


def load_tokenizer(path: str) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """The model's configuration and tokenizer: small, so that data can be checked before weights are read."""
    from transformers import AutoConfig, AutoTokenizer

    with _loading(path):
        return AutoConfig.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def max_length(config: PretrainedConfig) -> int | None:
    """Most tokens of a sequence, or None where the architecture has no limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def load_policy(path: str, config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> Policy:
    """The base model in the dtype asked for, frozen, with new adapters that the seed decides."""
    import torch
    from transformers import AutoModelForCausalLM

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = config.dtype if config.dtype != "auto" else ("float32" if device.type == "cpu" else "bfloat16")
    with _loading(path):
        base = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).to(device)
    torch.manual_seed(config.seed)
    return make_policy(base, tokenizer, config.lora_r, config.lora_alpha, config.lora_target_modules)


def make_policy(
    base: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lora_r: int,
    lora_alpha: float,
    lora_target_modules: tuple[str, ...] = ("all-linear",),
) -> Policy:
    from peft import LoraConfig, get_peft_model

    eos_ids = end_of_sequence_ids(base, tokenizer)
    pad_id = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, *sorted(eos_ids), 0) if i is not None)
    clear_generation_defaults(base, eos_ids, pad_id)
    targets = lora_target_modules[0] if lora_target_modules == ("all-linear",) else list(lora_target_modules)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora_r,
        lora_alpha=lora_alpha,
        lora_dropout=0.0,
        target_modules=targets,
    )
    try:
        model = get_peft_model(base, lora, autocast_adapter_dtype=True)
    except ValueError as error:
        raise InputError(f"--lora-target-modules {' '.join(lora_target_modules)}: {error}") from error
    model.eval()
    return Policy(model, tokenizer, eos_ids, pad_id, base.device)


def end_of_sequence_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends a completion: the generation configuration's, the model's and the tokenizer's."""
    generation = model.generation_config.eos_token_id if model.generation_config is not None else None
    found: set[int] = set()
    for ids in (generation, getattr(model.config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return frozenset(found)


def clear_generation_defaults(model: PreTrainedModel, eos_ids: frozenset[int], pad_id: int) -> None:
    """Forget the sampling options that came with the model: `generate` adds them to those it is given."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(eos_token_id=sorted(eos_ids) or None, pad_token_id=pad_id)


@contextlib.contextmanager
def _loading(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        kind = "the folder" if Path(path).exists() else "no such folder here, and the Hub model"
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"--model {path}: {kind} cannot be loaded as a causal LM: {first}") from error
