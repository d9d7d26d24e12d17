"""Those who compute the same loss: each a function from the inputs to the loss, called as its users call it.

A contender starts from hidden states or from logits (``Case.start``). What is not installed, or cannot run on a device,
is left out with its reason.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_kernels import GRPOLossConfig, grpo_loss, linear_grpo_loss, linear_token_logps

from .cases import EPSILON, Case, Inputs, objective

TRL_VOCABULARY_CHUNK = 32768  # TRL 1.16's own setting

# (inputs, hidden states or logits, weight of the head) to the loss, or to log-probabilities [B, T].
Run = Callable[[Inputs, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Contender:
    """
    Attributes:
        package: what has to be importable.
        devices: where it can run.
        refuses: why it cannot do a case, or None.
    """

    name: str
    start: str
    run: Run
    package: str = "torch"
    devices: tuple[str, ...] = ("cpu", "cuda")
    refuses: Callable[[Case], str | None] = lambda case: None

    def missing(self, case: Case, device: str) -> str | None:
        """Why it is left out, or None."""
        if device not in self.devices:
            return f"runs on {', '.join(self.devices)} only"
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return self.refuses(case)


CONTENDERS: list[Contender] = []


def contender(name: str, start: str, **options: object) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        CONTENDERS.append(Contender(name, start, run, **options))  # type: ignore[arg-type]
        return run

    return register


def contenders_of(case: Case) -> list[Contender]:
    return [contender for contender in CONTENDERS if contender.start == case.start]


def config_of(case: Case) -> GRPOLossConfig:
    return GRPOLossConfig(loss_type="dapo", epsilon=EPSILON, beta=case.beta, importance_sampling_level=case.level)


@contender("ours, linear", "hidden")
def ours_linear(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return linear_grpo_loss(
        hidden, weight, x.ids, x.advantages, completion_mask=x.mask, old_logps=x.old_logps, ref_logps=x.ref_logps,
        config=config_of(x.case),
    ).loss  # fmt: skip


@contender("ours, head and logits", "hidden")
def ours_logits_of_hidden(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return ours_logits(x, hidden @ weight.T, weight)


@contender("ours, logits", "logits")
def ours_logits(x: Inputs, logits: Tensor, weight: Tensor) -> Tensor:
    return grpo_loss(
        logits, x.ids, x.advantages, completion_mask=x.mask, old_logps=x.old_logps, ref_logps=x.ref_logps,
        overwrite_logits=True, config=config_of(x.case),
    ).loss  # fmt: skip


@contender("ours, linear", "logps")
def ours_logps(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    logps = linear_token_logps(hidden, weight, x.ids, mask=x.mask)
    assert isinstance(logps, Tensor)
    return logps


@contender("ours, tiled", "logps", devices=("cuda",))
def ours_tiled(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    logps = linear_token_logps(hidden, weight, x.ids, mask=x.mask, tiled=True)
    assert isinstance(logps, Tensor)
    return logps


def eager_logps(logits: Tensor, ids: Tensor) -> Tensor:
    """As most loops have it: float32 logits, log_softmax, gather."""
    return torch.log_softmax(logits.float(), -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


@contender("eager", "logits")
def eager_of_logits(x: Inputs, logits: Tensor, weight: Tensor) -> Tensor:
    return objective(eager_logps(logits, x.ids), x)


@contender("eager", "hidden")
def eager(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return objective(eager_logps(hidden @ weight.T, x.ids), x)


@contender("eager", "logps")
def eager_forward(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return eager_logps(hidden @ weight.T, x.ids) * x.mask


@functools.cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function)


def _logps_of_hidden(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return eager_logps(hidden @ weight.T, ids)


@contender("eager, torch.compile", "hidden")
def compiled_eager(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return objective(compiled(_logps_of_hidden)(hidden, weight, x.ids), x)


@contender("eager, torch.compile", "logits")
def compiled_eager_of_logits(x: Inputs, logits: Tensor, weight: Tensor) -> Tensor:
    return objective(compiled(eager_logps)(logits, x.ids), x)


def scattered(x: Inputs, values: Tensor) -> Tensor:
    """Values of the unmasked tokens as [B, T]."""
    return values.new_zeros(x.mask.shape).masked_scatter(x.mask, values)


def _trl_logps(x: Inputs, hidden: Tensor, weight: Tensor, outputs: tuple[str, ...]) -> Tensor:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    values = ChunkedLogProbFunction.apply(
        hidden[x.mask], weight, None, x.ids[x.mask], 1.0, TRL_VOCABULARY_CHUNK, None, 1.0, outputs
    )
    return scattered(x, values[0])


@contender("TRL, chunked", "hidden", package="trl")
def trl(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    """Fed with the unmasked tokens only, as TRL does on GPUs but not on a CPU; with entropies, as TRL does."""
    return objective(_trl_logps(x, hidden, weight, ("entropy",)), x)


@contender("TRL, chunked", "logps", package="trl")
def trl_forward(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return _trl_logps(x, hidden, weight, ())


@contender("TRL, logits kernel", "logits", package="trl", devices=("cuda",))
def trl_of_logits(x: Inputs, logits: Tensor, weight: Tensor) -> Tensor:
    from trl.kernels.logprob_entropy import selective_log_softmax_and_entropy

    return objective(selective_log_softmax_and_entropy(logits, x.ids)[0].float(), x)


@contender("Liger, chunked", "hidden", package="liger_kernel")
def liger(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(
        beta=x.case.beta, compiled=x.device.type == "cuda", use_ref_model=x.ref_logps is not None, loss_type="dapo",
        epsilon_low=EPSILON, epsilon_high=EPSILON, importance_sampling_level=x.case.level,
    )  # fmt: skip
    return loss(
        hidden, weight, x.ids, x.mask.float(), x.advantages, old_per_token_logps=x.old_logps,
        ref_per_token_logps=x.ref_logps,
    )[0]  # fmt: skip


@contender("Liger, logits kernel", "logits", package="liger_kernel", devices=("cuda",))
def liger_of_logits(x: Inputs, logits: Tensor, weight: Tensor) -> Tensor:
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    # It expects the logits of one position more, which predicts nothing.
    padded = torch.cat([logits, logits[:, -1:]], dim=1)
    return triton_grpo_loss(
        padded, x.old_logps, x.ref_logps, x.ids, x.advantages, x.mask, 1.0, x.case.beta, EPSILON, EPSILON,
        importance_sampling_level=x.case.level, reduce=True,
    )[0]  # fmt: skip


def _torch_logps(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    losses = torch.nn.functional.linear_cross_entropy(hidden[x.mask], weight, x.ids[x.mask], reduction="none")
    return scattered(x, -losses.float())


def _needs_torch_function(case: Case) -> str | None:
    found = hasattr(torch.nn.functional, "linear_cross_entropy")
    return None if found else "this torch has no linear_cross_entropy"


@contender("torch linear_cross_entropy", "hidden", refuses=_needs_torch_function)
def torch_linear(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return objective(_torch_logps(x, hidden, weight), x)


@contender("torch linear_cross_entropy", "logps", refuses=_needs_torch_function)
def torch_linear_forward(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return _torch_logps(x, hidden, weight)


def _cce_logps(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    # Without its filter, which drops gradients that bfloat16 would round away.
    losses = linear_cross_entropy(hidden[x.mask], weight, x.ids[x.mask], reduction="none", filter_eps=None)
    return scattered(x, -losses.float())


@contender("cut_cross_entropy", "hidden", package="cut_cross_entropy", devices=("cuda",))
def cce(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return objective(_cce_logps(x, hidden, weight), x)


@contender("cut_cross_entropy", "logps", package="cut_cross_entropy", devices=("cuda",))
def cce_forward(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return _cce_logps(x, hidden, weight)


def _quack_logps(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    from quack.linear_cross_entropy import linear_cross_entropy_func

    losses = linear_cross_entropy_func(hidden[x.mask], weight, None, x.ids[x.mask], reduction="none")
    return scattered(x, -losses.float())


@contender("quack", "hidden", package="quack", devices=("cuda",))
def quack(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return objective(_quack_logps(x, hidden, weight), x)


@contender("quack", "logps", package="quack", devices=("cuda",))
def quack_forward(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    return _quack_logps(x, hidden, weight)


@contender("Unsloth", "hidden", package="unsloth_zoo", devices=("cuda",))
def unsloth(x: Inputs, hidden: Tensor, weight: Tensor) -> Tensor:
    from unsloth_zoo.rl_replacements import chunked_hidden_states_selective_log_softmax

    return objective(chunked_hidden_states_selective_log_softmax(hidden, weight, x.ids).float(), x)
