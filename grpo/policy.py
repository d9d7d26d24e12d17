"""The policy: a frozen causal LM with LoRA adapters, its tokenizer, and what it makes of its completions."""

from __future__ import annotations

import contextlib
import inspect
import json
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


# The adapter that is trained has PEFT's name; the frozen one, where the reference is not the base alone, has this.
TRAINED, REFERENCE = "default", "reference"


@dataclass(frozen=True)
class Policy:
    """The model stays in evaluation mode, but for the passes of the gradient where dropout or checkpointing need it:
    without dropout the ratio starts at exactly 1."""

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    pad_id: int  # fills padding; may be an id with a meaning, since masks come from lengths
    device: torch.device
    recomputes_activations: bool = False
    has_dropout: bool = False

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
        token, where activations are checkpointed or parameters sharded, and where the cache is not one of plain keys
        and values.
        """
        from transformers.cache_utils import DynamicCache, DynamicLayer

        # transformers keeps no cache while it checkpoints activations, and FSDP2 gathers no parameters for gradients
        # that come back through one.
        if prompt_ids.shape[1] < 2 or len(rows) == len(prompt_ids) or self.model.training or self.is_sharded:
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
        """Inside, passes are those of the gradient: with dropout and activation checkpointing, where asked for."""
        self.model.train(self.recomputes_activations or self.has_dropout)
        try:
            yield
        finally:
            self.model.eval()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, there is no dropout, and decoding keeps its cache; after that the mode is what it was."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """Inside, the model is the reference, without gradients: the frozen adapter if there is one, else the base."""
        import torch

        with torch.no_grad():
            if REFERENCE not in self.model.peft_config:
                with self.model.disable_adapter():
                    yield
            else:
                with self._active(REFERENCE):
                    yield

    @contextlib.contextmanager
    def as_base(self) -> Iterator[None]:
        """Inside, the model is the base model alone, without gradients."""
        import torch

        with torch.no_grad(), self.model.disable_adapter():
            yield

    def freeze_reference(self) -> None:
        """Make the reference a frozen copy of the adapter as it is now."""
        if REFERENCE not in self.model.peft_config:
            self._add_reference()
        for _, ours, theirs in self._pairs():
            ours.data = theirs.to(ours.dtype).clone()

    def sync_reference(self, alpha: float) -> None:
        """Move the reference towards the policy: `alpha * policy + (1 - alpha) * reference`, parameter by parameter.

        Where it is the base model it becomes an adapter first, one without effect.
        """
        import torch

        if REFERENCE not in self.model.peft_config:
            self._add_reference()
            # A new adapter does nothing, by the factor that starts at 0 and by DoRA's magnitudes, which are those of
            # the base. The other factor is the policy's, so that the product moves in proportion.
            for name, ours, theirs in self._pairs():
                if "lora_A." in name or "lora_embedding_B." in name:
                    ours.data.copy_(theirs)
        with torch.no_grad():
            for _, ours, theirs in self._pairs():
                ours.lerp_(theirs, alpha)

    def _add_reference(self) -> None:
        """A new adapter, frozen and not active."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        self.model.add_adapter(REFERENCE, self.model.peft_config[TRAINED])
        for name, parameter in self.model.named_parameters():
            if f".{REFERENCE}" in name:
                parameter.requires_grad_(False)
                parameter.data = parameter.data.float()
        for module in self.model.modules():
            if isinstance(module, BaseTunerLayer):
                module._active_adapter = [TRAINED]

    def _pairs(self) -> list[tuple[str, torch.nn.Parameter, torch.Tensor]]:
        """Every parameter of the reference adapter, its name, and the value of the trained one, spread over the
        processes only where that of the reference is."""
        named: dict[str, Any] = dict(self.model.named_parameters())
        pairs = []
        for name, ours in named.items():
            if f".{REFERENCE}" in name:
                theirs = named[name.replace(f".{REFERENCE}", f".{TRAINED}")].detach()
                is_whole = hasattr(theirs, "full_tensor") and not hasattr(ours, "full_tensor")
                pairs.append((name, ours, theirs.full_tensor() if is_whole else theirs))
        return pairs

    @contextlib.contextmanager
    def _active(self, adapter: str) -> Iterator[None]:
        """PEFT's own switch would also change which parameters are trained."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        layers = [module for module in self.model.modules() if isinstance(module, BaseTunerLayer)]
        for layer in layers:
            layer._active_adapter = [adapter]
        try:
            yield
        finally:
            for layer in layers:
                layer._active_adapter = [TRAINED]


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

    with loading(path):
        return AutoConfig.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def max_length(config: PretrainedConfig) -> int | None:
    """Most tokens of a sequence, or None where the architecture has no limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def load_policy(path: str, config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> Policy:
    """The base model in the dtype asked for, frozen, with new adapters that the seed decides, or those of a folder."""
    import torch

    base = load_base(path, config)
    torch.manual_seed(config.seed)
    return make_policy(
        base,
        tokenizer,
        config.lora_r,
        config.lora_alpha,
        config.lora_target_modules,
        lora_dropout=config.lora_dropout,
        use_rslora=config.use_rslora,
        use_dora=config.use_dora,
        adapter=config.adapter,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def load_base(path: str, config: TrainConfig) -> PreTrainedModel:
    """The causal LM on its device, in the dtype asked for or in 4 bits."""
    import torch
    from accelerate import PartialState
    from transformers import AutoModelForCausalLM

    device = PartialState(cpu=not torch.cuda.is_available()).device
    dtype = config.dtype if config.dtype != "auto" else ("float32" if device.type == "cpu" else "bfloat16")
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if config.attn_implementation is not None:
        options["attn_implementation"] = config.attn_implementation
    if config.load_in_4bit:
        options |= {"quantization_config": four_bits(options["dtype"]), "device_map": {"": device}}
    with loading(path):
        base = AutoModelForCausalLM.from_pretrained(path, **options)
    return base if config.load_in_4bit else base.to(device)


def four_bits(compute_dtype: torch.dtype) -> Any:
    """nf4 with double quantisation (QLoRA, arXiv 2305.14314). Raises InputError without bitsandbytes."""
    import importlib.util

    from transformers import BitsAndBytesConfig

    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError("--load-in-4bit needs bitsandbytes: pip install 'grpo-kernels[4bit]'")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
    )


def keep_gradients_of_4_bits(model: torch.nn.Module) -> None:
    """Where the CPU has AVX-512 BF16, bitsandbytes packs the weights in evaluation mode for a product that has no
    backward pass: gradients of what comes before a layer would silently lack its share. Tell its layers not to."""
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False


def make_policy(
    base: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lora_r: int,
    lora_alpha: float,
    lora_target_modules: tuple[str, ...] = ("all-linear",),
    *,
    lora_dropout: float = 0.0,
    use_rslora: bool = False,
    use_dora: bool = False,
    adapter: str | None = None,
    gradient_checkpointing: bool | None = None,
) -> Policy:
    """`base` with adapters to train: new ones, or those of the folder `adapter`, whose frozen copy is the reference.

    `gradient_checkpointing` None means on a GPU. Adapters are float32 whatever the base. Dropout of the base is
    switched off for good, that of the adapters is `lora_dropout`, also where a folder says otherwise.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    eos_ids = end_of_sequence_ids(base, tokenizer)
    pad_id = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, *sorted(eos_ids), 0) if i is not None)
    clear_generation_defaults(base, eos_ids, pad_id)
    targets = lora_target_modules[0] if lora_target_modules == ("all-linear",) else list(lora_target_modules)
    without_dropout(base)
    keep_gradients_of_4_bits(base)
    if gradient_checkpointing is None:
        gradient_checkpointing = base.device.type == "cuda"
    if gradient_checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if adapter is not None:
        model = load_adapter(base, adapter)
    else:
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=lora_r,
            lora_alpha=lora_alpha,
            lora_dropout=lora_dropout,
            use_rslora=use_rslora,
            use_dora=use_dora,
            target_modules=targets,
        )
        try:
            model = get_peft_model(base, lora, autocast_adapter_dtype=True)
        except ValueError as error:
            raise InputError(f"--lora-target-modules {' '.join(lora_target_modules)}: {error}") from error
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = lora_dropout
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(True)
            parameter.data = parameter.data.float()
    model.eval()
    policy = Policy(model, tokenizer, eos_ids, pad_id, base.device, gradient_checkpointing, lora_dropout > 0)
    if adapter is not None:
        policy.freeze_reference()
    return policy


def load_adapter(base: PreTrainedModel, folder: str) -> PeftModel:
    """Raises InputError where the folder holds no LoRA adapter that fits."""
    from peft import PeftModel

    adapter_config(Path(folder), f"--adapter {folder}")
    try:
        return PeftModel.from_pretrained(base, folder, is_trainable=True, autocast_adapter_dtype=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"--adapter {folder}: it cannot be put on this model: {first}") from error


def adapter_config(folder: Path, argument: str) -> dict[str, Any]:
    """What PEFT says of the LoRA adapter in a folder; raises InputError, with the argument's name, where none is."""
    try:
        found = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{argument}: there is no adapter_config.json that can be read; give the folder of a PEFT adapter"
        ) from error
    kind = found.get("peft_type") if isinstance(found, dict) else None
    if kind != "LORA":
        raise InputError(f"{argument}: its adapter_config.json has peft_type {kind!r}; it must be 'LORA'")
    if not (folder / "adapter_model.safetensors").is_file():
        raise InputError(f"{argument}: there is no adapter_model.safetensors")
    return found


def without_dropout(model: torch.nn.Module) -> None:
    """Set every dropout probability of the model to 0: as modules, and as numbers that attention reads."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


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
def loading(path: str) -> Iterator[None]:
    """What goes wrong inside is an InputError that names the model."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        kind = "the folder" if Path(path).exists() else "no such folder here, and the Hub model"
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"--model {path}: {kind} cannot be loaded as a causal LM: {first}") from error
