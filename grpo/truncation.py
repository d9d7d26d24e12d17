"""What to do with completions that the length limit cut off or nearly did."""

from __future__ import annotations

from grpo.errors import InputError
from grpo.groups import Completion, Group

OVERLONG_RULE = "overlong@1"


def is_masked(completion: Completion, mask_truncated_completions: bool) -> bool:
    """Whether a completion is left out of the loss.

    As in TRL, a masked completion still counts in its group's baseline and deviation, and as a sequence of the
    batch; its tokens contribute nothing, not even a KL term, and count in no mean over tokens.
    """
    return mask_truncated_completions and completion.truncated


def soft_overlong_penalty(length: int, max_completion_length: int, overlong_cache: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13) of a completion of `length` tokens.

    0 up to `max_completion_length - overlong_cache` tokens, then falling linearly to -1 at
    `max_completion_length`, and -1 beyond. Raises InputError unless 0 < overlong_cache <= max_completion_length.
    """
    if not 0 < overlong_cache <= max_completion_length:
        raise InputError(
            f"overlong_cache is {overlong_cache}; it must be at least 1 and at most max_completion_length "
            f"({max_completion_length})"
        )
    over = length - (max_completion_length - overlong_cache)
    return -min(max(over, 0), overlong_cache) / overlong_cache


def punish_overlong(group: Group, max_completion_length: int, overlong_cache: int) -> Group:
    """The group with the penalty of each completion as the reward of one more rule, "overlong@1".

    Add its weight (1 in DAPO) to the end of the reward weights. A completion without a verdict gets no penalty.
    """
    return group.with_rule(
        OVERLONG_RULE,
        [soft_overlong_penalty(len(c.ids), max_completion_length, overlong_cache) for c in group.completions],
    )
