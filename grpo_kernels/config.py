"""What the loss computes: one frozen, checked description, shared by every backend."""

from __future__ import annotations

import sys
from dataclasses import dataclass

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
CLIPPED_LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
IMPORTANCE_SAMPLING_LEVELS = ("token", "sequence")
KL_ESTIMATORS = ("k1", "k2", "k3")


@dataclass(frozen=True)
class GRPOLossConfig:
    """Options of the GRPO family of losses, under TRL's names.

    Attributes:
        loss_type: which objective and which normalisation; one of ``LOSS_TYPES``.

            * ``grpo``: clipped ratio, mean over each sequence, then over sequences (DeepSeekMath, 2402.03300);
            * ``bnpo``: clipped ratio, mean over the tokens of the batch;
            * ``dr_grpo``: clipped ratio, divided by ``B * max_completion_length`` (2503.20783);
            * ``dapo``: clipped ratio, divided by ``num_items_in_batch`` (DAPO, 2503.14476);
            * ``luspo``: clipped ratio, sum over each sequence, mean over sequences;
            * ``cispo``: clipped, detached ratio times log-probability (MiniMax-M1, 2506.13585);
            * ``sapo``: a sigmoid gate instead of clipping;
            * ``vespo``: a detached gamma weight of the sequence ratio times log-probability.
        importance_sampling_level: ``token``, or ``sequence`` for one ratio per sequence (GSPO, 2507.18071).
        beta: weight of the KL term, >= 0. 0 leaves it out of the loss; it is still reported when
            ``ref_logps`` are given.
        kl_estimator: ``k3`` (``exp(d) - d - 1``), ``k1`` (``-d``) or ``k2`` (``d^2 / 2``), d = ref - logp.
        use_bias_correction_kl: multiply the KL estimate by the importance ratio.
        epsilon: lower clipping range, >= 0: the ratio is clipped at ``1 - epsilon``.
        epsilon_high: upper clipping range, >= 0; ``None`` means ``epsilon``. For ``cispo`` it is the upper
            bound of the ratio itself.
        delta: upper bound of the unclipped ratio (two-sided clipping), > 0, or ``None``. Clipped losses only.
        temperature: sampling temperature, > 0 (at least 1e-6); logits are divided by it.
        entropy_coef: weight of the entropy bonus that is subtracted from the loss.
        sapo_temperature_pos, sapo_temperature_neg: sapo's tau where the advantage is > 0, and elsewhere; > 0.
        vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg: vespo's gamma parameters; >= 0.
        max_completion_length: tokens; the divisor of ``dr_grpo``, which requires it.

    Raises:
        ValueError: an option has an impossible value, or two options exclude each other.
        TypeError: a numeric option is not a number.
    """

    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    beta: float = 0.0
    kl_estimator: str = "k3"
    use_bias_correction_kl: bool = False
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    temperature: float = 1.0
    entropy_coef: float = 0.0
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    max_completion_length: int | None = None

    def __post_init__(self) -> None:
        _check_choice("loss_type", self.loss_type, LOSS_TYPES)
        _check_choice("importance_sampling_level", self.importance_sampling_level, IMPORTANCE_SAMPLING_LEVELS)
        _check_choice("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        if not isinstance(self.use_bias_correction_kl, bool):
            raise TypeError(f"use_bias_correction_kl is {self.use_bias_correction_kl!r}; allowed: True, False")
        for name in ("beta", "epsilon", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"):
            _check_number(name, getattr(self, name), "a finite number >= 0", lambda x: x >= 0)
        _check_number("temperature", self.temperature, "a finite number > 0 (at least 1e-6)", lambda x: x >= 1e-6)
        for name in ("sapo_temperature_pos", "sapo_temperature_neg"):
            _check_number(name, getattr(self, name), "a finite number > 0", lambda x: x > 0)
        _check_number("entropy_coef", self.entropy_coef, "a finite number", lambda x: True)
        if self.epsilon_high is not None:
            _check_number("epsilon_high", self.epsilon_high, "a finite number >= 0, or None", lambda x: x >= 0)
        if self.delta is not None:
            _check_number("delta", self.delta, "a finite number > 0, or None", lambda x: x > 0)
            if self.loss_type not in CLIPPED_LOSS_TYPES:
                raise ValueError(
                    f"delta is {self.delta!r}, but loss_type {self.loss_type!r} has no two-sided clipping: "
                    f"leave delta None or choose one of {', '.join(CLIPPED_LOSS_TYPES)}"
                )
        if self.max_completion_length is not None:
            _check_number(
                "max_completion_length",
                self.max_completion_length,
                "a whole number >= 1, or None",
                lambda x: x >= 1 and x == int(x),
            )
        elif self.loss_type == "dr_grpo":
            raise ValueError("max_completion_length is None, but loss_type 'dr_grpo' divides by it: set it")

    @property
    def upper_epsilon(self) -> float:
        """``epsilon_high``, or ``epsilon`` where that is ``None``."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def is_clipped(self) -> bool:
        """Whether the policy term is the minimum of a clipped and an unclipped ratio."""
        return self.loss_type in CLIPPED_LOSS_TYPES

    @property
    def needs_whole_sequence(self) -> bool:
        """Whether a token's coefficient depends on the other tokens of its sequence."""
        return self.loss_type == "vespo" or self.importance_sampling_level == "sequence"


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _check_number(name: str, value: object, allowed: str, is_allowed) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); allowed: {allowed}")
    # Comparisons, unlike math.isfinite, can be traced by torch.compile; infinities and NaN fail them.
    if not (-sys.float_info.max <= value <= sys.float_info.max and is_allowed(value)):
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
