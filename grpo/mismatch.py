"""How far the sampler's log-probabilities are from the trainer's, and the importance weights that make up for it.

Engines round, batch and order their sums in their own way, and may hold an older policy. With
`d_t = trainer_t - sampler_t`, the ratio of a token is exp(d_t), that of a sequence exp(sum_t d_t).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def mismatch_metrics(sampler_logps: Tensor, trainer_logps: Tensor, mask: Tensor) -> dict[str, float]:
    """Of the unmasked tokens of logps [B, T]: mean and largest |d|, the k3 estimate of KL(sampler || trainer), and the
    extremes of the ratio. Nothing where there are none."""
    import torch

    d = (trainer_logps - sampler_logps)[mask.bool()].double()
    if not d.numel():
        return {}
    return {
        "mismatch/logp_difference_mean": d.abs().mean().item(),
        "mismatch/kl": (torch.expm1(d) - d).mean().item(),
        "mismatch/logp_difference/max": d.abs().max().item(),
        "mismatch/ratio/min": d.exp().min().item(),
        "mismatch/ratio/max": d.exp().max().item(),
    }


def importance_weights(
    sampler_logps: Tensor, trainer_logps: Tensor, mask: Tensor, correction: str, cap: float
) -> Tensor:
    """Weights for the policy term, from log-probabilities [B, T] of sampled tokens and their mask [B, T].

    `token_truncate`: min(ratio, cap) of each token (TIS, Yao et al. 2025); `token_mask`: the ratio, 0 where it is above
    the cap (MIS); `sequence_truncate` and `sequence_mask`: the same for the ratio of the whole sequence.

    Returns [B, T] at token level, [B, 1] at sequence level; without gradient. Raises InputError for another
    correction.
    """
    if correction not in CORRECTIONS:
        raise InputError(f"importance_sampling_correction is {correction!r}; it must be {', '.join(CORRECTIONS)}")
    level, _, how = correction.partition("_")
    # Not a product with the mask: behind it logps may be -inf.
    d = (trainer_logps - sampler_logps).detach().masked_fill(~mask.bool(), 0.0)
    ratio = (d if level == "token" else d.sum(-1, keepdim=True)).exp()
    return ratio.clamp(max=cap) if how == "truncate" else ratio.masked_fill(ratio > cap, 0.0)
