"""A head whose vocabulary is spread over the processes of a group: what they tell each other.

Every process holds consecutive rows of the weight, in the order of the ranks, and all of them the same tokens. Per
chunk of tokens each computes statistics of its own logits; with ``a_j = (x_j - peak) / T`` two reductions combine them:

* the maximum of the peaks, one number a token;
* the sum of three numbers a token: ``sum_j exp(a_j)`` without the target, ``sum_j a_j exp(a_j)``, and the target's
  ``a_y``, which is in one process only.

From there every process has the softmax of the whole vocabulary, and with it the gradient of its own logits. The
gradient of the hidden states is a sum over the vocabulary: one more reduction, after the last chunk.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import torch_rows
from .config import GRPOLossConfig
from .ops import implementation
from .torch_rows import RowLoss, RowStats, row_objective

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Hidden states of two processes may differ by rounding; those of other tokens differ by much more than this, relative.
SAME_TOKENS_TOLERANCE = 1e-3
# The weights of a checksum repeat after a prime number of places.
CHECKSUM_PERIOD = 8191
# Dimensions of hidden states that a checksum covers: enough to tell tokens apart, at no memory to speak of.
CHECKED_DIMENSIONS = 64


@dataclass(frozen=True, eq=False)
class VocabShard:
    """The part of a vocabulary that this process holds.

    Attributes:
        group: the processes that hold the vocabulary together.
        offset: the number of the first column here.
        columns: how many are here.
        most_columns: how many the process with the most of them has.
        vocabulary: how many there are in all.
    """

    group: ProcessGroup
    offset: int
    columns: int
    most_columns: int
    vocabulary: int

    def own(self, ids: Tensor) -> Tensor:
        """The ids as columns of this process; -1 for those of the others."""
        local = ids - self.offset
        return local.masked_fill((local < 0) | (local >= self.columns), -1)

    def sum_(self, values: Tensor) -> Tensor:
        """Add up over the group, in place."""
        dist.all_reduce(values, dist.ReduceOp.SUM, group=self.group)
        return values

    def max_(self, values: Tensor) -> Tensor:
        """The largest of the group, in place."""
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return values

    def any(self, rows: Tensor) -> Tensor:
        """The rows that any process wants: all of them have to reduce the same ones, whatever rounding did."""
        return self.max_(rows.to(torch.int32)) != 0


class ShardedRows:
    """The row operations of ``torch_rows`` for logits of which this process holds some columns, with global ids."""

    def __init__(self, shard: VocabShard, backend: str) -> None:
        self.shard = shard
        self.local = implementation(backend)

    def fused_rows_(
        self,
        values: Tensor,
        ids: Tensor,
        advantages: Tensor,
        old_logps: Tensor | None,
        ref_logps: Tensor | None,
        token_weights: Tensor | None,
        weights: Tensor,
        entropy_weights: Tensor | None,
        temperatures: Tensor | None,
        config: GRPOLossConfig,
        softcap: float,
        logit_scale: float,
        out: Tensor | None,
    ) -> tuple[RowStats, RowLoss]:
        """``torch_rows.fused_rows_`` of the columns here, [n, columns]; statistics and losses are of all columns."""
        temperature = config.temperature if temperatures is None else temperatures
        temperature, logit_scale = as_one_scale(temperature, softcap, logit_scale)
        stats, targets = self._stats(values, ids, temperature, softcap, logit_scale)
        vectors = (advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures)
        row_loss = row_objective(stats, vectors, config)
        if out is not None:
            grad_entropy = None if entropy_weights is None else -entropy_weights
            upstream = (row_loss.derivative, grad_entropy)
            self.local.grad_rows_(values, targets, stats, *upstream, temperature, softcap, logit_scale, out)
        return stats, row_loss

    def logp_rows_(
        self,
        values: Tensor,
        ids: Tensor,
        grad_logps: Tensor | None,
        grad_entropy: Tensor | None,
        temperature: float | Tensor,
        softcap: float,
        logit_scale: float,
        out: Tensor | None,
    ) -> RowStats:
        """``torch_rows.logp_rows_`` of the columns here, [n, columns]; statistics are of all columns."""
        temperature, logit_scale = as_one_scale(temperature, softcap, logit_scale)
        stats, targets = self._stats(values, ids, temperature, softcap, logit_scale)
        if out is not None:
            assert grad_logps is not None
            upstream = (grad_logps, grad_entropy)
            self.local.grad_rows_(values, targets, stats, *upstream, temperature, softcap, logit_scale, out)
        return stats

    def _stats(
        self, values: Tensor, ids: Tensor, temperature: float | Tensor, softcap: float, logit_scale: float
    ) -> tuple[RowStats, Tensor]:
        """Statistics of the whole rows, [n] each, and the targets as columns of this process."""
        targets = self.shard.own(ids)
        columns = targets.clamp(min=0)
        local = self.local.stats_rows(values, columns, temperature, softcap, logit_scale)
        target = values.gather(-1, columns.unsqueeze(-1)).to(local.peak.dtype)
        torch_rows.apply_head_(target, softcap, logit_scale, with_slope=False)
        peak = local_peak(values, local)
        return combined_stats(local, target.squeeze(-1), targets >= 0, peak, temperature, self.shard), targets


def as_one_scale(temperature: float | Tensor, softcap: float, logit_scale: float) -> tuple[float | Tensor, float]:
    """Without a soft-cap a logit scale is a temperature: ``(temperature / logit_scale, 1)``."""
    return (temperature, logit_scale) if softcap else (temperature / logit_scale, 1.0)


def local_peak(values: Tensor, stats: RowStats) -> Tensor:
    """The peaks, but -inf for rows all of whose logits [n, columns] are: their ``stats`` say 0 (and a total of 1)."""
    peak = stats.peak.clone()
    candidates = ((peak == 0.0) & (stats.total == 1.0)).nonzero().squeeze(-1)
    if candidates.numel():
        empty = values[candidates].amax(-1) == -math.inf
        peak[candidates[empty]] = -math.inf
    return peak


def combined_stats(
    local: RowStats, target: Tensor, is_here: Tensor, peak: Tensor, temperature: float | Tensor, shard: VocabShard
) -> RowStats:
    """Statistics of the rows from those of their parts.

    Args:
        local: of the columns here, with any column as the target where ``is_here`` [n] is False.
        target: [n], the target's logit where it is here.
        peak: [n], of the columns here; -inf: there is nothing but -inf.
        temperature: a number or [n].
    """
    whole_peak = shard.max_(peak.clone())
    is_empty = whole_peak == -math.inf
    whole_peak = whole_peak.masked_fill(is_empty, 0.0)
    shift = (peak - whole_peak) / temperature
    # miss is 0 where the target's logit is -inf: then the rest is everything.
    is_impossible = target == -math.inf
    rest = torch.where(is_here & ~is_impossible, local.miss * local.total, local.total)
    weighted = local.total * (local.total.log() - local.entropy + shift.masked_fill(shift == -math.inf, 0.0))
    factor = shift.exp()
    own_target = ((target - whole_peak) / temperature).clamp(max=0.0).masked_fill(~is_here, 0.0)
    rest, weighted, target = shard.sum_(torch.stack((factor * rest, factor * weighted, own_target)))
    return _row_stats(rest, weighted, target, whole_peak, is_empty)


def _row_stats(rest: Tensor, weighted: Tensor, target: Tensor, peak: Tensor, is_empty: Tensor) -> RowStats:
    """``RowStats`` from sums over all columns; ``target`` is ``(x_y - peak) / T``."""
    is_impossible = target == -math.inf
    total = (rest + target.exp()).masked_fill(is_empty, 1.0)
    # log(total / exp(target)), with all digits where the target is almost everything.
    surprise = torch.where(target > -1.0, torch.log1p(rest * torch.exp(-target)), total.log() - target)
    log_total = torch.where(is_impossible, total.log(), target + surprise)
    return RowStats(
        logps=(-surprise).masked_fill(is_impossible, -math.inf),
        entropy=(log_total - weighted / total).masked_fill(is_empty, 0.0),
        peak=peak,
        total=total,
        miss=(rest / total).masked_fill(is_impossible, 0.0),
    )


def local_head(
    weight: Any, bias: Any, process_group: ProcessGroup | None
) -> tuple[Tensor, Tensor | None, ProcessGroup | None]:
    """The weight and bias that this process holds, and the group among which the vocabulary is spread, if it is.

    DTensors sharded on dimension 0 become their local tensors; gradients find their way back.
    """
    if process_group is not None:
        _check_group(process_group)
    if not hasattr(weight, "full_tensor"):
        if hasattr(bias, "full_tensor"):
            raise ValueError("bias is a DTensor, but weight is not; allowed: both, or neither")
        return weight, bias, process_group
    if process_group is not None:
        raise ValueError("process_group is given, but weight is a DTensor; allowed: None, its mesh names the group")
    mesh = weight.device_mesh
    _check_placement("weight", weight, mesh)
    if bias is not None:
        if not hasattr(bias, "full_tensor"):
            raise ValueError("weight is a DTensor, but bias is not; allowed: both, or neither")
        _check_placement("bias", bias, mesh)
    group = mesh.get_group()
    if dist.get_process_group_ranks(group) != mesh.mesh.tolist():
        raise ValueError(f"weight is on the mesh {mesh.mesh.tolist()}; allowed: a mesh whose ranks ascend")
    return weight.to_local(), None if bias is None else bias.to_local(), group


def _check_group(group: object) -> None:
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"process_group is {type(group).__name__}; allowed: a torch.distributed.ProcessGroup, or None")
    if dist.get_rank(group) < 0:
        raise ValueError("process_group does not contain this process; allowed: a group that it is a member of")


def _check_placement(name: str, tensor: Any, mesh: Any) -> None:
    if tensor.device_mesh != mesh:
        raise ValueError(f"{name} is a DTensor on another mesh than weight; allowed: the same mesh")
    if tensor.device_mesh.ndim != 1 or not tensor.placements[0].is_shard(0):
        raise ValueError(
            f"{name} is a DTensor with placements {tensor.placements}; allowed: (Shard(dim=0),) on a 1-d mesh, or an "
            f"ordinary tensor ({name}.full_tensor())"
        )


def agreed_shard(
    group: ProcessGroup,
    weight: Tensor,
    states: Sequence[Tensor | None],
    exact: Sequence[Tensor | None],
    near: Sequence[Tensor | None],
    options: object,
) -> VocabShard:
    """The shard that ``weight`` [columns, D] is, once the processes have seen that they work on the same tokens.

    One all-gather of some numbers a process, and one transfer from the device.

    Args:
        states: hidden states; the shape of the first must be the same everywhere, and all values within rounding.
        exact, near: other tensors that must be the same everywhere, or the same within rounding.
        options: whatever else must be; its ``repr`` is compared.

    Raises:
        ValueError, in every process: something differs, or the slice of one of them is empty.
    """
    hidden = states[0]
    assert hidden is not None
    identity = zlib.crc32(repr((hidden.dtype, options)).encode())
    shape = (hidden.dim(), hidden.shape[0], hidden.numel(), hidden.shape[-1])
    same = torch.tensor([*shape, identity], dtype=torch.float64, device=hidden.device)
    samples = [None if tensor is None else tensor[..., :CHECKED_DIMENSIONS] for tensor in states]
    sums = [checksum(tensor, hidden.device) for tensor in (*exact, *samples, *near)]
    own = torch.cat((same.new_tensor([weight.shape[0]]), same, torch.stack([part for pair in sums for part in pair])))
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    rows = torch.stack(everyone).tolist()
    columns = [int(row[0]) for row in rows]
    first_exact, first_near = 1 + len(same), 1 + len(same) + 2 * len(exact)
    for rank, row in enumerate(rows):
        differs = row[1:first_near] != rows[0][1:first_near]
        for place in range(first_near, len(row), 2):
            difference = abs(row[place] - rows[0][place])
            differs = differs or difference > SAME_TOKENS_TOLERANCE * max(row[place + 1], rows[0][place + 1])
        if differs:
            different_shape = row[1:first_exact] != rows[0][1:first_exact]
            raise ValueError(
                f"{'shapes or options' if different_shape else 'tokens'} of ranks 0 and {rank} of the vocabulary's "
                "group differ; allowed: the same arguments on all its ranks, beside weight and bias (a weight that "
                "FSDP shards, with tokens that differ by rank, is to be passed whole: weight.full_tensor())"
            )
    if 0 in columns:
        raise ValueError(f"weight has no rows on rank {columns.index(0)} of its group; allowed: at least 1 on each")
    rank = dist.get_rank(group)
    return VocabShard(group, sum(columns[:rank]), columns[rank], max(columns), sum(columns))


def checksum(tensor: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """``sum w_i x_i`` and ``sum w_i |x_i|`` in float64, with weights that tell places apart; 0 for None."""
    if tensor is None:
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        return nothing, nothing
    values = tensor.detach().flatten().double().nan_to_num(nan=0.0, posinf=1e6, neginf=-1e6)
    weights = torch.arange(values.numel(), device=device).remainder(CHECKSUM_PERIOD).add_(1).double()
    return values @ weights, values.abs() @ weights
