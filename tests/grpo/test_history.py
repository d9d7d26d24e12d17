"""A run's metrics at its start and now, in bounded memory."""

from grpo.history import RECENT, History


def history(values, name: str = "reward", **others) -> History:
    found = History()
    for step, value in enumerate(values):
        found.add({"step": step, name: value} | others)
    return found


def test_start_and_now_are_means_of_ten():
    found = history(range(100))
    assert found.at_start("reward") == 4.5
    assert found.now("reward") == 94.5
    assert found.rise("reward") == 90.0
    assert found.count("reward") == 100


def test_too_few_values_say_nothing():
    found = history(range(19))
    assert found.at_start("reward") is found.rise("reward") is None
    assert found.now("reward", 20) is None
    assert found.now("other") is None
    assert found.recent("other") == []


def test_noise_is_no_rise():
    assert history([0.0, 1.0] * 5 + [0.1, 1.0] * 5).rise("reward") == 0.0


def test_memory_does_not_grow_with_the_run():
    found = history(range(10_000))
    assert len(found.recent("reward")) == RECENT
    assert found.recent("reward")[-1] == 9999.0


def test_what_is_missing_or_no_number_is_left_out():
    found = history([None, 1.0, "x"])
    assert found.recent("reward") == [1.0]


def test_the_first_and_the_latest_evaluation_are_kept():
    found = History()
    for step in range(0, 30):
        found.add({"step": step} | ({"eval_accuracy": step / 100} if step % 10 == 0 else {}))
    assert (found.first_evaluation["step"], found.last_evaluation["step"]) == (0, 20)
