"""Accuracy is the share of tasks that the first reward calls right."""

from grpo.evaluate import Evaluation, evaluate
from grpo.rewards import Reward
from tests.grpo.conftest import task, tiny_policy


def test_accuracy_counts_full_marks_of_the_first_reward():
    rewards = ((1.0, 0.0), (0.5, 1.0), (None, 1.0), (2.0, 1.0))
    assert Evaluation((), rewards).accuracy == 0.5


def test_every_task_is_answered_once_and_greedily():
    seen = []
    spy = Reward("spy", 1, lambda completions, **_: seen.extend(completions) or [1.0] * len(completions))
    tasks = [task(str(n), prompt=f"{n}+1=") for n in range(5)]
    first = evaluate(tiny_policy(), tasks, [spy], 4, batch_size=2)
    second = evaluate(tiny_policy(), tasks, [spy], 4, batch_size=5)
    assert [c.task.id for c in first.completions] == list("01234")
    assert first.completions == second.completions
    assert len(seen) == 10
