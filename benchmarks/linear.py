"""The loss from hidden states against others, on this machine's CPU: ``python -m benchmarks.linear``.

Same inputs, same process, interleaved rounds; the figure is the median of the rounds as a ratio to ours. A contender
whose loss or gradient is wrong is reported and not timed; one that is not installed is named (`pip install trl
liger-kernel`). Peak memory is what torch's allocator held in a step over what it held before.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_kernels import GRPOLossConfig, linear_grpo_loss

SHAPES = ((576, 49152), (896, 151936))  # hidden size and vocabulary of SmolLM2-135M and Qwen2.5-0.5B
TRL_VOCABULARY_CHUNK = 32768  # TRL 1.16's own setting
EPSILON = 0.2


@dataclass(frozen=True)
class Inputs:
    """8 sequences of up to 128 tokens, lengths from 20% to 100%; old log-probabilities near the policy's."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    advantages: Tensor
    mask: Tensor
    old_logps: Tensor


def make_inputs(width: int, vocabulary: int, dead_groups: bool) -> Inputs:
    torch.manual_seed(0)
    batch, length = 8, 128
    hidden, weight = torch.randn(batch, length, width), torch.randn(vocabulary, width) * 0.05
    ids = torch.randint(vocabulary, (batch, length))
    # Long and short sequences alike in the half that dead groups leave.
    lengths = torch.linspace(0.2, 1.0, batch).mul(length).long()[[0, 7, 1, 6, 2, 5, 3, 4]]
    advantages = torch.randn(batch)
    if dead_groups:
        advantages[[0, 1, 4, 5]] = 0.0
    logps = torch.cat(
        [torch.log_softmax(h @ weight.T, -1).gather(-1, i[:, None]) for h, i in zip(hidden, ids, strict=True)]
    )
    old_logps = logps.view(batch, length) + 0.05 * torch.randn(batch, length)
    return Inputs(hidden, weight, ids, advantages, torch.arange(length) < lengths[:, None], old_logps)


def clipped_mean(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    ratio = torch.exp(logps - old_logps)
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    return (losses * mask).sum() / mask.sum()


def ours(hidden: Tensor, x: Inputs) -> Tensor:
    config = GRPOLossConfig(loss_type="dapo", epsilon=EPSILON)
    return linear_grpo_loss(
        hidden, x.weight, x.ids, x.advantages, completion_mask=x.mask, old_logps=x.old_logps, config=config
    ).loss


def eager(hidden: Tensor, x: Inputs) -> Tensor:
    log_probs = torch.log_softmax(hidden @ x.weight.T, -1)
    logps = log_probs.gather(-1, x.ids[..., None]).squeeze(-1)
    return clipped_mean(logps, x.old_logps, x.advantages[:, None], x.mask.float())


def trl(hidden: Tensor, x: Inputs) -> Tensor:
    """Fed with the active tokens only."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    logps = ChunkedLogProbFunction.apply(
        hidden[x.mask], x.weight, None, x.ids[x.mask], 1.0, TRL_VOCABULARY_CHUNK, None, 1.0, ("entropy",)
    )[0]
    advantages = x.advantages[:, None].expand_as(x.mask)[x.mask]
    return clipped_mean(logps, x.old_logps[x.mask], advantages, torch.ones_like(logps))


def liger(hidden: Tensor, x: Inputs) -> Tensor:
    from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=False, use_ref_model=False, loss_type="dapo", epsilon_low=EPSILON, epsilon_high=EPSILON
    )
    return loss(hidden, x.weight, x.ids, x.mask.float(), x.advantages, old_per_token_logps=x.old_logps)[0]


CONTENDERS: dict[str, Callable[[Tensor, Inputs], Tensor]] = {"ours": ours, "trl": trl, "liger": liger, "eager": eager}


def step(name: str, x: Inputs) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the hidden states."""
    hidden = x.hidden.clone().requires_grad_()
    loss = CONTENDERS[name](hidden, x)
    loss.backward()
    assert hidden.grad is not None
    return loss.detach(), hidden.grad


def able(x: Inputs) -> list[str]:
    """The contenders that are installed and right."""
    expected = step("eager", x)
    found = []
    for name in CONTENDERS:
        try:
            results = step(name, x)
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        if all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(results, expected, strict=True)):
            found.append(name)
        else:
            print(f"{name}: WRONG, not timed")
    return found


def median_seconds(names: list[str], x: Inputs, rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            started = time.perf_counter()
            step(name, x)
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_mib(name: str, x: Inputs) -> float:
    """The most memory that torch held at a time during a step, over what it held before, in MiB."""
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profile:
        step(name, x)
    held, peak = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, 8 x 128 tokens, frozen head")
    for (width, vocabulary), dead in ((shape, dead) for shape in SHAPES for dead in (False, True)):
        x = make_inputs(width, vocabulary, dead)
        names = able(x)
        seconds = median_seconds(names, x, options.rounds)
        print(f"\nD {width}, V {vocabulary}{', half of the groups dead' if dead else ''}: ours {seconds['ours']:.3f} s")
        for name in names:
            memory = "" if dead else f", peak {peak_mib(name, x):7.0f} MiB"
            print(f"  {name:6} {seconds[name] / seconds['ours']:.2f} x{memory}")


if __name__ == "__main__":
    main()
