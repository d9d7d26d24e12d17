"""What is measured: a batch by its sizes, its inputs, and the loss and gradients that are right for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SEQUENCES = 8
EPSILON = 0.2
REFERENCE_ROWS = 256  # tokens whose logits the reference holds at a time
STARTS = ("hidden", "logits", "logps")


@dataclass(frozen=True)
class Case:
    """A batch of 8 sequences.

    Attributes:
        start: "hidden": loss and gradient from hidden states; "logits": from logits that are there already; "logps":
            log-probabilities from hidden states, without a gradient.
        tokens: completion tokens, masked ones included; a multiple of 8.
        width: D, the hidden size; vocabulary: V.
        active: the share of tokens that are not masked, in sequences of different lengths.
        dead: the share of sequences whose advantage is 0.
        beta: weight of the KL term.
        trains_head: the head's weight gets a gradient.
        level: "token" or "sequence", of the importance ratio.
        dtype: "float32", "bfloat16" or "float16".
    """

    start: str = "hidden"
    tokens: int = 1024
    width: int = 576
    vocabulary: int = 49152
    active: float = 0.6
    dead: float = 0.0
    beta: float = 0.0
    trains_head: bool = False
    level: str = "token"
    dtype: str = "float32"

    @property
    def name(self) -> str:
        parts = [f"{self.start} N={self.tokens} D={self.width} V={self.vocabulary} {self.dtype}"]
        parts += [f"active {self.active:.0%}"] if self.active != 0.6 else []
        parts += [f"dead {self.dead:.0%}"] if self.dead else []
        parts += ["KL"] if self.beta else []
        parts += ["head trained"] if self.trains_head else []
        parts += ["sequence level"] if self.level != "token" else []
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Inputs:
    """hidden [B, T, D], weight [V, D], in the dtype of the case; advantages [B]; the rest [B, T]."""

    case: Case
    hidden: Tensor
    weight: Tensor
    ids: Tensor
    advantages: Tensor
    mask: Tensor
    old_logps: Tensor
    ref_logps: Tensor | None

    @property
    def device(self) -> torch.device:
        return self.hidden.device


def make_inputs(case: Case, device: str = "cpu") -> Inputs:
    """Random inputs, the same for every contender; old and reference log-probabilities are near the policy's."""
    generator = torch.Generator().manual_seed(0)
    dtype, length = getattr(torch, case.dtype), case.tokens // SEQUENCES
    hidden = torch.randn(SEQUENCES, length, case.width, generator=generator).to(device, dtype)
    # So that logits have a standard deviation of about 1.2, whatever the width.
    weight = (torch.randn(case.vocabulary, case.width, generator=generator) * 1.2 * case.width**-0.5).to(device, dtype)
    ids = torch.randint(case.vocabulary, (SEQUENCES, length), generator=generator).to(device)
    advantages = torch.randn(SEQUENCES, generator=generator)
    # Long and short sequences alike among those that dead groups leave.
    order = [0, 7, 1, 6, 2, 5, 3, 4]
    least = max(0.05, 2 * case.active - 1)
    lengths = torch.linspace(least, 2 * case.active - least, SEQUENCES).mul(length).round().clamp(1, length)[order]
    dead = [0, 1, 4, 5, 2, 3, 6, 7][: round(case.dead * SEQUENCES)]
    advantages[dead] = 0.0
    noise = 0.05 * torch.randn(2, SEQUENCES, length, generator=generator).to(device)
    logps = reference_logps(hidden, weight, ids)
    return Inputs(
        case,
        hidden,
        weight,
        ids,
        advantages.to(device),
        (torch.arange(length) < lengths[:, None]).to(device),
        logps + noise[0],
        logps + noise[1] if case.beta else None,
    )


def objective(logps: Tensor, x: Inputs) -> Tensor:
    """The clipped loss over all unmasked tokens (DAPO, 2503.14476), with k3 KL, from log-probabilities [B, T]."""
    mask = x.mask.to(logps.dtype)
    log_ratio = logps - x.old_logps
    if x.case.level == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
    ratio, advantages = torch.exp(log_ratio), x.advantages.unsqueeze(-1)
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    if x.ref_logps is not None:
        difference = x.ref_logps - logps
        losses = losses + x.case.beta * (torch.exp(difference) - difference - 1)
    return (losses * mask).sum() / mask.sum()


@torch.no_grad()
def reference_logps(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """[B, T], float32, from float32 products."""
    rows = zip(hidden.flatten(0, 1).split(REFERENCE_ROWS), ids.flatten().split(REFERENCE_ROWS), strict=True)
    found = [torch.log_softmax(h.float() @ weight.float().T, -1).gather(-1, i[:, None]).squeeze(-1) for h, i in rows]
    return torch.cat(found).view(ids.shape)


def reference_results(x: Inputs) -> list[Tensor]:
    """What a contender has to give, in float32: loss and gradients by the chain rule, or log-probabilities."""
    logps = reference_logps(x.hidden, x.weight, x.ids)
    if x.case.start == "logps":
        return [logps * x.mask]
    leaf = logps.requires_grad_()
    loss = objective(leaf, x)
    (derivative,) = torch.autograd.grad(loss, leaf)
    weight = x.weight.float()
    grad_logits, grad_hidden, grad_weight = [], [], torch.zeros_like(weight)
    chunks = (
        values.flatten(0, 1).split(REFERENCE_ROWS) for values in (x.hidden, x.ids[..., None], derivative[..., None])
    )
    with torch.no_grad():
        for hidden, ids, slope in zip(*chunks, strict=True):
            gradient = torch.softmax(hidden.float() @ weight.T, -1) * -slope
            gradient.scatter_add_(-1, ids, slope)
            if x.case.start == "logits":
                grad_logits.append(gradient)
                continue
            grad_hidden.append(gradient @ weight)
            if x.case.trains_head:
                grad_weight += gradient.T @ hidden.float()
    if x.case.start == "logits":
        return [loss.detach(), torch.cat(grad_logits).view(*x.ids.shape, -1)]
    results = [loss.detach(), torch.cat(grad_hidden).view(x.hidden.shape)]
    return [*results, grad_weight] if x.case.trains_head else results
