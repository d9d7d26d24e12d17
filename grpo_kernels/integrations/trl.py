"""TRL's ``GRPOTrainer`` with this package's loss: ``from grpo_kernels.integrations.trl import FusedGRPOTrainer``.

Everything but the loss is TRL's: arguments, data, generation, rewards, metrics, checkpoints. Written for TRL 1.16.
"""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from trl import GRPOTrainer
from trl.trainer.utils import FusedCausalLMOutput

from ..config import CLIPPED_LOSS_TYPES, GRPOLossConfig
from ..heads import LMHead, UnsupportedHeadError, causal_lm, find_lm_head, matches_model_logits
from ..linear_losses import linear_grpo_loss, linear_token_logps
from ..losses import GRPOLossOutput, grpo_loss, token_logps

logger = logging.getLogger(__name__)

MODEL_INPUTS = (
    "pixel_values", "image_grid_thw", "pixel_attention_mask", "spatial_shapes", "image_sizes", "token_type_ids",
    "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
# Divided by the tokens of the whole accumulation window; the others are means of a micro-batch.
WINDOW_LOSS_TYPES = ("dapo", "cispo", "vespo")
LEAST_VESPO_LAMBDA = 1e-4  # TRL raises smaller ones to it


class FusedGRPOTrainer(GRPOTrainer):
    """``trl.GRPOTrainer`` whose loss and log-probabilities come from the fused linear path.

    A drop-in: the same arguments, the same updates. Where the model's logits are not those of a plain head (it carries
    a scale that is not known, is quantised, or sharded and trainable), its logits are computed and the loss starts from
    them; a warning says so. Log-probabilities are computed from float32 logits where TRL rounds them to half precision.

    Args:
        all_metrics: True: entropy, KL and clip metrics cover all tokens, as TRL's do. False: tokens that cannot have
            a gradient (``beta`` 0 and advantage 0: groups whose rewards are all equal) are not multiplied with the
            head, and metrics are means over the others.
        args, kwargs: TRL's.

    Raises:
        ValueError: an option of the loss that would not give TRL's numbers; the message names it.
    """

    def __init__(self, *args: Any, all_metrics: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.all_metrics = all_metrics
        self._check_loss_options()
        for model in (self.model, self.ref_model):
            if model is not None:
                base = causal_lm(self.accelerator.unwrap_model(model))
                _add_scoring_forward(base, self.temperature, self.args.cast_lm_head_to_fp32)

    def _check_loss_options(self) -> None:
        if self._entropy_bonus_enabled and self.top_entropy_quantile < 1.0:
            name = "use_adaptive_entropy" if self.use_adaptive_entropy else "entropy_coef"
            raise ValueError(
                f"{name} is {getattr(self.args, name)!r} and top_entropy_quantile {self.top_entropy_quantile!r}; "
                f"FusedGRPOTrainer allows either, not both: its entropy bonus acts on every token"
            )
        self._loss_config(entropy_coef=0.0)

    def _loss_config(self, entropy_coef: float) -> GRPOLossConfig:
        return GRPOLossConfig(
            loss_type=self.loss_type,
            importance_sampling_level=self.importance_sampling_level,
            beta=self.beta,
            use_bias_correction_kl=self.args.use_bias_correction_kl,
            epsilon=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            # TRL reads it for these losses only.
            delta=self.args.delta if self.loss_type in CLIPPED_LOSS_TYPES else None,
            temperature=self.temperature,
            entropy_coef=entropy_coef,
            sapo_temperature_pos=self.args.sapo_temperature_pos,
            sapo_temperature_neg=self.args.sapo_temperature_neg,
            vespo_k_pos=self.args.vespo_k_pos,
            vespo_lambda_pos=max(self.args.vespo_lambda_pos, LEAST_VESPO_LAMBDA),
            vespo_k_neg=self.args.vespo_k_neg,
            vespo_lambda_neg=max(self.args.vespo_lambda_neg, LEAST_VESPO_LAMBDA),
            max_completion_length=self.max_completion_length,
        )

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        mode = "train" if self.model.training else "eval"
        steps = self.current_gradient_accumulation_steps if mode == "train" else 1
        is_window_loss = self.loss_type in WINDOW_LOSS_TYPES
        # The bonus is divided by the accumulation steps whatever the policy term is divided by.
        applied = self._applied_entropy_coef()
        config = self._loss_config(applied / steps if is_window_loss else applied)
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]

        def score(tokens: _Scorer) -> dict[str, Any]:
            return self._fused_loss(tokens, inputs, mask, config, self._items_in_window(inputs, steps, mode))

        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        model_inputs = {name: inputs[name] for name in MODEL_INPUTS if inputs.get(name) is not None}
        if self.aux_loss_enabled:
            model_inputs["output_router_logits"] = True
        with self.accelerator.autocast():
            results = model(input_ids=ids, attention_mask=attention_mask, fused_lm_head=score, **model_inputs)
        output: GRPOLossOutput = results["output"]
        loss = output.loss if is_window_loss else output.loss / steps
        if self._entropy_bonus_enabled:
            policy_loss = output.metrics.get("policy_loss", output.loss.detach())
            self._metrics[mode]["policy_loss"].append(self.accelerator.gather(policy_loss).nanmean().item())
            self._control_entropy(output.entropy, mask, mode)
        if self.aux_loss_enabled:
            aux_loss = results["aux_loss"]
            loss = loss + self.router_aux_loss_coef * aux_loss / steps
            self._metrics[mode]["aux_loss"].append(self.accelerator.gather_for_metrics(aux_loss).mean().item())
        self._log_metrics(output, mask, mode)
        return loss

    def _fused_loss(
        self,
        tokens: _Scorer,
        inputs: dict[str, Any],
        mask: Tensor,
        config: GRPOLossConfig,
        num_items_in_batch: Tensor | None,
    ) -> dict[str, Any]:
        """Runs inside the model's forward pass."""
        ids, advantages = inputs["completion_ids"], inputs["advantages"]
        token_weights = self._policy_mask(tokens, inputs, mask)
        sampling_weights = inputs.get("importance_sampling_ratio")
        if self.loss_type == "vespo":
            # Its token weights are those of the sequence weight; a mask acts on the loss alone.
            if token_weights is not None:
                advantages = (advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages) * token_weights
            token_weights = sampling_weights
        elif sampling_weights is not None:
            token_weights = sampling_weights if token_weights is None else token_weights * sampling_weights
        output = tokens.grpo_loss(
            ids,
            advantages,
            completion_mask=mask,
            old_logps=inputs.get("old_per_token_logps"),
            ref_logps=inputs["ref_per_token_logps"] if self.beta != 0.0 else None,
            token_weights=token_weights,
            num_items_in_batch=num_items_in_batch,
            all_metrics=self.all_metrics,
            config=config,
        )
        # DDP looks for tensors with a gradient in dictionaries.
        return {"loss": output.loss, "output": output, "aux_loss": tokens.aux_loss}

    def _policy_mask(self, tokens: _Scorer, inputs: dict[str, Any], mask: Tensor) -> Tensor | None:
        """1 for the tokens that the policy term acts on, else 0, where options ask for a choice; it costs a pass."""
        selects_by_entropy = self.top_entropy_quantile < 1.0
        if self.off_policy_mask_threshold is None and not selects_by_entropy:
            return None
        with torch.no_grad():
            logps, entropy = tokens.logps(inputs["completion_ids"], mask)
        result = torch.ones_like(logps)
        if self.off_policy_mask_threshold is not None:
            old_logps = inputs.get("old_per_token_logps")
            sampling_logps = inputs.get("sampling_per_token_logps", logps if old_logps is None else old_logps)
            advantages = inputs["advantages"]
            result = result * self.get_off_policy_mask(
                advantages=advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages,
                per_token_logps=logps,
                sampling_per_token_logps=sampling_logps,
                mask=mask,
                off_policy_threshold=self.off_policy_mask_threshold,
            )
        if selects_by_entropy:
            result = result * self.get_high_entropy_mask(entropy, mask, 1 - self.top_entropy_quantile)
        return result

    def _items_in_window(self, inputs: dict[str, Any], steps: int, mode: str) -> Tensor | None:
        """Tokens of this process's share of an accumulation window; TRL counts those of a generation batch."""
        if self.loss_type not in WINDOW_LOSS_TYPES:
            return None
        items = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        return items * steps / self.args.steps_per_generation if mode == "train" else items

    def _applied_entropy_coef(self) -> float:
        if self.use_adaptive_entropy and self._last_world_entropy > self.args.entropy_target:
            return 0.0
        return self.entropy_coef

    def _control_entropy(self, entropy: Tensor, mask: Tensor, mode: str) -> None:
        """Adaptive entropy control (Skywork-OR1, 2505.22312): at the end of a window the next one's coefficient."""
        if mode != "train":
            return
        if self.use_adaptive_entropy:
            totals = torch.stack([(entropy * mask).sum(), mask.sum().to(entropy.dtype)])
            before: Tensor | None = self._entropy_window_stats
            self._entropy_window_stats: Tensor | None = totals if before is None else before + totals
        if not self.accelerator.sync_gradients:
            return
        if self.use_adaptive_entropy:
            totals = self.accelerator.reduce(self._entropy_window_stats, reduction="sum")
            self._last_world_entropy = (totals[0] / totals[1].clamp(min=1.0)).item()
            is_low = self._last_world_entropy <= self.args.entropy_target
            moved = self.entropy_coef + (1 if is_low else -1) * self.args.entropy_coef_delta
            self.entropy_coef: float = (
                min(moved, self.args.entropy_coef_max) if is_low else max(moved, self.args.entropy_coef_min)
            )
            self._entropy_window_stats = None
        self._metrics[mode]["entropy_coef"].append(self.entropy_coef)

    def _log_metrics(self, output: GRPOLossOutput, mask: Tensor, mode: str) -> None:
        """Under TRL's names, as means over all processes."""
        values = {name: value for name, value in output.metrics.items() if name not in ("policy_loss", "metric_tokens")}
        if self.beta == 0.0:
            values.pop("kl", None)
        sequences = float(mask.shape[0])
        tokens = output.metrics.get("metric_tokens", mask.sum()).to(output.loss.dtype)
        for name, value in values.items():
            if name.endswith(("_min", "_max")):
                gathered = self.accelerator.gather(value)
                total = gathered.min() if name.endswith("_min") else gathered.max()
            else:
                per_sequence = name not in ("entropy", "kl") and (
                    self.importance_sampling_level == "sequence" or name.startswith("vespo")
                )
                count = tokens.new_tensor(sequences) if per_sequence else tokens
                sums = self.accelerator.reduce(torch.stack([value * count, count]), reduction="sum")
                total = sums[0] / sums[1].clamp(min=1.0)
            self._metrics[mode][name].append(total.item())


@dataclass(frozen=True)
class _Scorer:
    """The last T tokens of a forward pass, to be scored from hidden states or from logits.

    Attributes:
        logps: ``(ids [B, T], mask [B, T])`` to log-probabilities and entropies [B, T], 0 where the mask is.
        grpo_loss: as ``linear_grpo_loss``, without hidden states and head.
        aux_loss: the load-balancing loss of a mixture of experts, 0-d, or None.
    """

    logps: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    grpo_loss: Callable[..., GRPOLossOutput]
    aux_loss: Tensor | None


def _add_scoring_forward(model: Any, temperature: float, fp32_head: bool) -> None:
    """Let ``model(..., fused_lm_head=function)`` return ``function(scorer)``, and True what TRL's own head returns.

    The loss is computed inside the model's forward pass, so that what surrounds the model (DDP, PEFT, autocast) sees
    one forward and one backward pass. Heads are looked up in every pass: PEFT and FSDP exchange them.
    """
    inner = model.forward
    has_plain_head = _has_plain_head(model)

    # The signature stays: transformers' generate checks its arguments against it.
    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, fused_lm_head: Any = False, labels: Tensor | None = None, **kwargs: Any) -> Any:
        if fused_lm_head is False:
            return inner(*args, **kwargs) if labels is None else inner(*args, labels=labels, **kwargs)
        kwargs["use_cache"] = False
        head = _usable_head(self) if has_plain_head else None
        outputs = inner(*args, **kwargs) if head is None else self.base_model(*args, **kwargs)
        aux_loss = _load_balancing_loss(self, outputs, kwargs) if kwargs.get("output_router_logits") else None
        if head is None:
            scorer = _from_logits(outputs.logits, temperature, aux_loss)
        else:
            scorer = _from_hidden_states(outputs.last_hidden_state, head, temperature, fp32_head, aux_loss)
        if callable(fused_lm_head):
            return fused_lm_head(scorer)
        assert labels is not None
        ids = labels[:, 1:]
        logps, entropy = scorer.logps(ids.clamp(min=0), ids != -100)
        return FusedCausalLMOutput(log_probs=logps, entropy=entropy, label_mask=ids != -100, aux_loss=aux_loss)

    model.forward = types.MethodType(forward, model)


def _has_plain_head(model: Any) -> bool:
    reason = "they are not those of its head"
    try:
        if matches_model_logits(model):
            return True
    except UnsupportedHeadError as error:
        reason = str(error)
    logger.warning("The loss of %s starts from its logits, which are held whole: %s", type(model).__name__, reason)
    return False


def _usable_head(model: Any) -> LMHead | None:
    """The head as it is now, or None where sharding has made it unusable meanwhile."""
    try:
        return find_lm_head(model)
    except UnsupportedHeadError:
        return None


def _from_hidden_states(
    hidden: Tensor, head: LMHead, temperature: float, fp32_head: bool, aux_loss: Tensor | None
) -> _Scorer:
    weight, options = head.weight, dict(head.options)
    device = weight.device.type
    if torch.is_autocast_enabled(device) and not fp32_head:
        weight = weight.to(torch.get_autocast_dtype(device))
        options["bias"] = None if head.bias is None else head.bias.to(weight.dtype)
    hidden = hidden.to(weight.device, weight.dtype)

    def logps(ids: Tensor, mask: Tensor) -> Any:
        with torch.autocast(device, enabled=False):
            return linear_token_logps(_before(ids, hidden), weight, ids, temperature, True, mask=mask, **options)

    def loss(ids: Tensor, advantages: Tensor, **more: Any) -> GRPOLossOutput:
        with torch.autocast(device, enabled=False):
            return linear_grpo_loss(_before(ids, hidden), weight, ids, advantages, **options, **more)

    return _Scorer(logps, loss, aux_loss)


def _from_logits(logits: Tensor, temperature: float, aux_loss: Tensor | None) -> _Scorer:
    def logps(ids: Tensor, mask: Tensor) -> Any:
        values = token_logps(_before(ids, logits), ids, temperature, True)
        return tuple(value.masked_fill(mask == 0, 0.0) for value in values)

    def loss(ids: Tensor, advantages: Tensor, *, all_metrics: bool, **more: Any) -> GRPOLossOutput:
        return grpo_loss(_before(ids, logits), ids, advantages, **more)

    return _Scorer(logps, loss, aux_loss)


def _before(ids: Tensor, positions: Tensor) -> Tensor:
    """The positions that predict the last tokens."""
    return positions[:, -ids.shape[1] - 1 : -1]


def _load_balancing_loss(model: Any, outputs: Any, inputs: dict[str, Any]) -> Tensor:
    """The loss of a mixture of experts that keeps them in equal use, as the model's own forward computes it."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config = model.config.get_text_config()
    return load_balancing_loss_func(
        outputs.router_logits, config.num_experts, config.num_experts_per_tok, inputs.get("attention_mask")
    )
