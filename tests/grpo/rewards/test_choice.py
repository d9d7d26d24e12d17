"""Which letter a completion chooses; several are none."""

import time

import pytest

from grpo.errors import InputError
from grpo.rewards.choice import choice_reward

CITIES = ["London", "Paris", "Vitamin C", "A cat"]
# The answer is B.
RIGHT = [
    "B", "b", " B.\n", "(B)", "[B]", "**B**", "(b).", "B) Paris", "(B) Paris", "B. Paris", "B: Paris", "**B.** Paris",
    "<answer>B</answer>", "<answer> (b) </answer>", "<answer>B) Paris</answer>", "<answer>B</answer> not C or D",
    "<answer>C</answer> no: <answer>B</answer>", "A, C and D are out: <answer>B</answer>", "\\boxed{B}",
    "$\\boxed{\\text{B}}$",
    "\\boxed{\\textbf{(B)}}", "<answer>\\boxed{B}</answer>", "Answer: B", "ANSWER: B", "answer is B",
    "The answer is (B).",
    "The correct answer is **B**, since A is too small.", "**Answer:** B", "The answer is option B because C fails.",
    "Final answer: the option (B)", "A) is wrong.\nB) holds.\nAnswer: B", "Answer: A. Wait, no. Answer: B",
    "It must be B", "I think that a cat is not it, so B.", "B because it is the capital", "Option B",
    "(A cat) is no city: (B)",
    "<answer>The answer is B</answer>", "<answer>B: vitamin C is not a city</answer>",
]  # fmt: skip
WRONG = [
    "", "C", "(C)", "<answer>C</answer>", "<answer></answer>", "<answer>B</answer><answer>C</answer>",
    "B <answer>C</answer>",
    "A or B", "B or C", "B, C", "A/B", "A B C D", "(A) (B)", "A) B)", "<answer>A or B</answer>",
    "<answer>A, B, C, D</answer>",
    "<answer>B and C</answer>", "<answer>B C</answer>", "<answer>BC</answer>", "<answer>ABCD</answer>",
    "Answer: A or B",
    "Answer: B or C", "The answer is (B) or (C)", "Answer: B/C", "Answer: Because", "Answer: Boston", "\\boxed{}",
    "\\boxed{A, B}",
    "A) London\nB) Paris\nC) Rome", "B is wrong and C is right", "the best", "be", "Bravo", "B's", "B1", "_B_C_",
    "1B", "2",
    "\u0412", "\uff22", "\U0001d401", "B\u0301 or C", "A\u200b,\u200bB", "<answer>not B but C</answer>", "Not (B): (C)",
    "B) x\nC) y", "B. or C.", "K", "Z", "<answer>none</answer>", "Paris",
]  # fmt: skip


def judge(completion: str, answer="B", choices=None) -> float | None:
    return choice_reward(completions=[completion], answer=[answer], choices=None if choices is None else [choices])[0]


@pytest.mark.parametrize("completion", RIGHT)
def test_the_letter_that_is_chosen(completion):
    assert judge(completion) == 1.0


@pytest.mark.parametrize("completion", WRONG)
def test_another_letter_several_or_none(completion):
    assert judge(completion) == 0.0


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("<answer>Paris</answer>", "B", 1),
        ("<answer> paris. </answer>", "B", 1),
        ("\\boxed{\\text{Paris}}", "B", 1),
        ("Paris", "B", 1),
        ("<answer>B</answer>", "B", 1),
        ("<answer>B) Paris</answer>", "B", 1),
        ("<answer>C) vitamin C</answer>", "C", 1),
        ("<answer>A cat</answer>", "D", 1),
        ("<answer>A cat</answer>", "A", 0),
        ("<answer>B) London</answer>", "B", 0),
        ("<answer>B) London</answer>", "A", 0),
        ("<answer>London, Paris</answer>", "B", 0),
        ("<answer>Paris, Texas</answer>", "B", 0),
        ("<answer>E</answer>", "B", 0),
        ("<answer>Paris</answer>", 1, 1),
        ("<answer>A</answer>", 0, 1),
        ("<answer>B</answer>", "Paris", 1),
    ],
)
def test_with_choices_a_text_is_as_good_as_its_letter(completion, answer, expected):
    assert judge(completion, answer, CITIES) == expected


def test_texts_that_contradict_letters_or_come_twice_choose_nothing():
    assert judge("<answer>A</answer>", "B", ["B", "A"]) == judge("<answer>A</answer>", "A", ["B", "A"]) == 0.0
    assert judge("<answer>x</answer>", "A", ["x", "x"]) == 0.0
    assert judge("<answer>3</answer>", "B", [2, 3]) == 1.0


@pytest.mark.parametrize("answer", ["", "K", "Paris", 1, True, None, 1.0, ["B"]])
def test_an_answer_that_is_no_letter_is_refused(answer):
    with pytest.raises(InputError, match="the answer of sample 0 is"):
        judge("B", answer)


@pytest.mark.parametrize(("answer", "choices"), [("C", ["x", "y"]), (2, ["x", "y"]), (-1, ["x"]), ("z", ["x", "y"])])
def test_an_answer_beyond_the_choices_is_refused(answer, choices):
    with pytest.raises(InputError, match="the answer of sample 0 is"):
        judge("B", answer, choices)


@pytest.mark.parametrize("choices", ["text", [], ["x"] * 11, 3])
def test_choices_that_are_none_are_refused(choices):
    with pytest.raises(InputError, match="the choices of sample 0 are"):
        judge("A", "A", choices)


@pytest.mark.parametrize(
    "text", ["answer " * 100_000, "answer     " * 50_000, "(" * 10**6, "A)" * 300_000, "*" * 10**6, "A\n" * 300_000]
)
def test_long_texts_take_linear_time(text):
    started = time.perf_counter()
    assert judge(text) == 0.0
    assert time.perf_counter() - started < 3
