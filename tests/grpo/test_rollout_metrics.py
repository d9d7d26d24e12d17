"""What the completions of one sampling say: rewards and their parts, groups, lengths, texts."""

import pytest

from grpo.groups import Completion, Group
from grpo.rollout_metrics import compressible, length_metrics, repeated_ngrams, rollout_metrics, text_metrics
from tests.grpo.conftest import EOS, task


def completion(length: int, text: str = "", truncated: bool = False, of=None) -> Completion:
    return Completion(of or task(), tuple(range(5, 5 + length)), text, truncated)


def test_every_metric_of_two_groups():
    one = task(rules=("numeric@1", "format@1"))
    short, long = Completion(one, (EOS,), "it is 3", False), Completion(one, (5, 6, 7), "4", True)
    groups = [
        Group("1", one, (short, long), ((1.0, 0.0), (0.0, None))),
        Group("2", one, (short, short), ((1.0, 1.0), (1.0, 1.0))),
    ]
    metrics = rollout_metrics(groups, ["numeric", "format"], (1.0, 2.0))
    assert metrics == pytest.approx(
        {
            "reward": (1 + 0 + 3 + 3) / 4,
            "rewards/numeric/mean": 3 / 4,
            "rewards/numeric/std": 0.5,
            "rewards/format/mean": 2 / 3,
            "rewards/format/std": 3**-0.5,
            "frac_no_verdict": 0.0,
            "frac_invalid_format": 1 / 3,
            "reward_std": 0.5**0.5 / 2,
            "reward_group_variance": 0.5 / 2,
            "frac_reward_zero_std": 0.5,
            "frac_all_right": 0.5,
            "frac_all_wrong": 0.0,
            "distinct_answers": (2 + 1) / 2,
            "completions/mean_length": 6 / 4,
            "completions/min_length": 1,
            "completions/max_length": 3,
            "completions/mean_terminated_length": 1.0,
            "completions/clipped_ratio": 1 / 4,
            "accuracy": 3 / 4,
            "accuracy/length_q1": 1.0,
            "accuracy/length_q2": 1.0,
            "accuracy/length_q3": 1.0,
            "accuracy/length_q4": 0.0,
        }
    )


def test_means_over_no_verdicts_are_left_out():
    group = Group("1", task(), (completion(1),), ((None,),))
    metrics = rollout_metrics([group], ["numeric"], (1.0,))
    assert metrics["frac_no_verdict"] == 1.0
    assert not {"reward", "accuracy", "rewards/numeric/mean", "frac_all_wrong"} & set(metrics)


def test_parts_of_a_reward_have_metrics_of_their_own_and_its_first_part_says_what_is_right():
    of = task(rules=("composite@1:abc",))
    group = Group(
        "1",
        of,
        (completion(1, of=of), completion(2, of=of)),
        ((1.2,), (0.7,)),
        (
            {"composite/correctness": 1.0, "composite/format": 0.0},
            {"composite/correctness": 0.0, "composite/format": 1.0},
        ),
    )
    metrics = rollout_metrics([group], ["composite"], (1.0,))
    assert metrics["rewards/composite/correctness/mean"] == metrics["rewards/composite/format/mean"] == 0.5
    assert metrics["accuracy"] == 0.5
    assert metrics["frac_invalid_format"] == 0.5


def test_a_part_of_another_reward_does_not_say_what_is_right():
    of = task(rules=("numeric@1", "style@1"))
    group = Group("1", of, (completion(1, of=of),), ((1.0, 0.0),), ({"style/tone": 0.0},))
    assert group.correctness == [1.0]


def test_accuracy_falls_into_quarters_by_length():
    lengths = [8, 1, 7, 2, 6, 3, 5, 4]
    group = Group("1", task(), tuple(map(completion, lengths)), tuple((float(n <= 5),) for n in lengths))
    metrics = length_metrics([group])
    assert [metrics[f"accuracy/length_q{n}"] for n in (1, 2, 3, 4)] == [1.0, 1.0, 0.5, 0.0]


def test_repetition_is_the_share_of_ngrams_that_came_before():
    assert repeated_ngrams(completion(10)) == 0.0
    assert repeated_ngrams(Completion(task(), (5,) * 10, "", False)) == pytest.approx(6 / 7)
    assert repeated_ngrams(completion(3)) is None


def test_repetitive_text_is_compressible():
    assert compressible("ab" * 500) > 0.95
    assert compressible("short") is None
    assert compressible("\ud800" * 100) > 0.5


def test_texts_that_are_too_short_say_nothing_of_repetition():
    assert text_metrics([Group("1", task(), (completion(2, "12"),), ((1.0,),))]) == {}
