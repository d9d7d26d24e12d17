"""What the completions of one sampling say, under TRL's names where it has them; every mean is a sum over a count."""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterable, Sequence

from grpo.advantages import all_equal
from grpo.difficulty import success_rate
from grpo.evaluate import answer_of
from grpo.groups import Completion, Group, is_right
from grpo.rewards.repetition import repeated_share

NGRAM = 4
SHORTEST_COMPRESSED = 100  # bytes; below, the compressor's own header decides


def rollout_metrics(groups: Sequence[Group], names: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    """Of the groups of all processes, whose rewards have `names` and `weights`. A mean over nothing is left out."""
    return {
        **reward_metrics(groups, names, weights),
        **group_metrics(groups, weights),
        **length_metrics(groups),
        **text_metrics(groups),
    }


def reward_metrics(groups: Sequence[Group], names: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    """The weighted total, each reward, and each part of those that are made of parts."""
    metrics = mean("reward", _present(total for group in groups for total in group.totals(tuple(weights))))
    for column, name in enumerate(names):
        metrics |= _spread(f"rewards/{name}", (row[column] for group in groups for row in group.rewards))
    parts = [own for group in groups for own in group.parts]
    for name in dict.fromkeys(name for own in parts for name in own):
        metrics |= _spread(f"rewards/{name}", (own.get(name) for own in parts))
    metrics |= mean("frac_no_verdict", [float(all(r is None for r in row)) for g in groups for row in g.rewards])
    form = next((column for column, name in enumerate(names) if name == "format"), None)
    verdicts = [row[form] for group in groups for row in group.rewards] if form is not None else []
    verdicts += [value for own in parts for name, value in own.items() if name.endswith("/format")]
    return metrics | mean("frac_invalid_format", [float(value < 1) for value in _present(verdicts)])


def group_metrics(groups: Sequence[Group], weights: Sequence[float]) -> dict[str, float]:
    """How much the completions of a group differ: in reward, and in what they answer."""
    totals = [_present(group.totals(tuple(weights))) for group in groups]
    metrics = mean("reward_std", [statistics.stdev(group) for group in totals if len(group) > 1])
    metrics |= mean("reward_group_variance", [statistics.variance(group) for group in totals if len(group) > 1])
    metrics |= mean("frac_reward_zero_std", [float(all_equal(group)) for group in totals])
    rates = _present(map(success_rate, groups))
    metrics |= mean("frac_all_right", [float(rate == 1) for rate in rates])
    metrics |= mean("frac_all_wrong", [float(rate == 0) for rate in rates])
    return metrics | mean("distinct_answers", [len({answer_of(c.text) for c in g.completions}) for g in groups])


def length_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Tokens, truncation, and accuracy in the four quarters of the completions by length, the shortest first."""
    completions = [c for group in groups for c in group.completions]
    lengths = [len(c.ids) for c in completions]
    metrics = mean("completions/mean_length", lengths)
    metrics |= {"completions/min_length": min(lengths), "completions/max_length": max(lengths)} if lengths else {}
    metrics |= mean("completions/mean_terminated_length", [len(c.ids) for c in completions if not c.truncated])
    metrics |= mean("completions/clipped_ratio", [float(c.truncated) for c in completions])
    judged = [
        (len(completion.ids), float(is_right(value)))
        for group in groups
        for completion, value in zip(group.completions, group.correctness, strict=True)
        if value is not None
    ]
    metrics |= mean("accuracy", [right for _, right in judged])
    judged.sort(key=lambda pair: pair[0])
    for n in range(4):
        quarter = judged[n * len(judged) // 4 : (n + 1) * len(judged) // 4]
        metrics |= mean(f"accuracy/length_q{n + 1}", [right for _, right in quarter])
    return metrics


def text_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """How repetitive the completions are, from 0 (not at all) to 1."""
    completions = [c for group in groups for c in group.completions]
    return {
        **mean("repetition/ngram", _present(map(repeated_ngrams, completions))),
        **mean("repetition/compression", _present(compressible(c.text) for c in completions)),
    }


def repeated_ngrams(completion: Completion) -> float | None:
    """The share of 4-grams of tokens that were there before; None for a completion of fewer than 4."""
    return repeated_share(completion.ids, NGRAM) if len(completion.ids) >= NGRAM else None


def compressible(text: str) -> float | None:
    """1 - compressed bytes / bytes (zlib), 0 where it would be negative; None for a text of fewer than 100 bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return max(1 - len(zlib.compress(data)) / len(data), 0.0) if len(data) >= SHORTEST_COMPRESSED else None


def mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: math.fsum(values) / len(values)} if values else {}


def _spread(name: str, values: Iterable[float | None]) -> dict[str, float]:
    present = _present(values)
    std = {f"{name}/std": statistics.stdev(present)} if len(present) > 1 else {}
    return mean(f"{name}/mean", present) | std


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
