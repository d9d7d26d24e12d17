"""Two-digit addition: the embedded task, split so that held-out sums are really unseen.

``a+b`` and ``b+a`` have the same digits and the same answer, so a model that has seen one has all but seen the other.
The unit of the partition is therefore the unordered pair: both orders of a pair are always on the same side.
"""

import hashlib
from typing import Literal, TypedDict, get_args

Split = Literal["warm_start", "train", "held_out"]

FIRST_OPERAND, LAST_OPERAND = 10, 99
# Numbers of unordered pairs. "train" takes the rest: 1,995 of the 4,095 there are.
HELD_OUT_PAIRS = 600
WARM_START_PAIRS = 1500


class AdditionProblem(TypedDict):
    """A row of the data set: ``{"prompt": "12+34=", "answer": "46"}``."""

    prompt: str
    answer: str


def _shuffled_pairs() -> list[tuple[int, int]]:
    """All pairs ``a <= b`` in a fixed order that looks random.

    Sorting by a digest, not ``random.shuffle``, because the shipped model was trained on one side of this partition: it
    must be the same for every Python version.
    """
    operands = range(FIRST_OPERAND, LAST_OPERAND + 1)
    pairs = [(a, b) for a in operands for b in range(a, LAST_OPERAND + 1)]
    return sorted(pairs, key=lambda pair: hashlib.sha256(f"{pair[0]}+{pair[1]}".encode()).digest())


def addition_problems(split: Split) -> list[AdditionProblem]:
    """The problems of one split, in an order that is the same on every machine.

    ``warm_start`` is what the embedded model was taught with answers, ``train`` is for reinforcement learning and
    ``held_out`` is for evaluation. The three are disjoint, also under exchange of the operands, and together hold every
    sum of two numbers from 10 to 99.
    """
    pairs = _shuffled_pairs()
    bounds: dict[str, slice] = {
        "held_out": slice(0, HELD_OUT_PAIRS),
        "warm_start": slice(HELD_OUT_PAIRS, HELD_OUT_PAIRS + WARM_START_PAIRS),
        "train": slice(HELD_OUT_PAIRS + WARM_START_PAIRS, None),
    }
    if split not in bounds:
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}; got {split!r}")
    ordered = [(a, b) for pair in pairs[bounds[split]] for a, b in sorted({pair, pair[::-1]})]
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in ordered]
