"""Whole steps: what is sampled is what is trained, windows of several steps, what is steered, and resuming."""

import dataclasses
import json
import math

import pytest
import torch

from grpo.callbacks import Callback
from grpo.checkpoint import checkpoints
from grpo.engines.transformers import TransformersEngine
from grpo.errors import InputError
from grpo.interrupt import Interrupted
from grpo.rewards import Reward
from grpo.window import training_sequences
from tests.grpo.conftest import task, tiny_policy
from tests.grpo.test_learner import copy, make_trainer, moved

TIMES = ("time/", "tokens_per_second", "memory/")
EVEN = Reward("even", 1, lambda completion_ids, **_: [float(ids[0] % 2 == 0) for ids in completion_ids])
TASKS = [task(str(n), prompt=f"{n}+1=", rules=("even@1",)) for n in range(6)]


def even_trainer(**options):
    torch.manual_seed(0)
    return make_trainer(policy=tiny_policy(trained=False), rewards=[EVEN], tasks=TASKS, **options)


def measured(row: dict) -> dict:
    """A row without what the clock says."""
    return {name: value for name, value in row.items() if not name.startswith(TIMES)}


def test_steps_learn_what_is_rewarded():
    """A random model comes to start with the tokens that pay."""
    trainer = even_trainer(max_steps=25, per_device_train_batch_size=64)
    rewards = [trainer.step().metrics["reward"] for _ in range(25)]
    assert sum(rewards[:3]) / 3 < 0.7
    assert sum(rewards[-3:]) / 3 > 0.9


def test_the_sampled_tokens_are_the_trained_tokens():
    trainer = make_trainer()
    torch.manual_seed(0)
    groups = trainer.collect().groups
    sequences = training_sequences(groups, (1.0,))
    assert [s.completion_ids for s in sequences] == [c.ids for g in groups for c in g.completions]
    assert len(sequences) == 8


def test_steps_measure_under_trl_names():
    metrics = make_trainer().step().metrics
    assert {
        "step", "reward", "reward_std", "rewards/numeric/mean", "kl", "entropy", "clip_ratio/region_mean",
        "completions/mean_length", "completions/clipped_ratio", "frac_reward_zero_std", "grad_norm", "learning_rate",
        "tokens_per_second", "ratio/min", "time/rollout", "time/train",
    } <= set(metrics)  # fmt: skip
    assert "kl" not in make_trainer(report_kl=False).step().metrics


def test_a_sampling_feeds_as_many_steps_as_asked():
    trainer = even_trainer(steps_per_generation=2, num_iterations=2, max_steps=8, per_device_train_batch_size=4)
    sampled = [len(trainer.step().groups) for _ in range(8)]
    assert sampled == [2, 0, 0, 0, 2, 0, 0, 0]


def test_the_ratio_is_one_in_the_first_step_of_a_window_alone():
    trainer = even_trainer(steps_per_generation=2, max_steps=4, per_device_train_batch_size=16, learning_rate=3e-2)
    rows = [trainer.step().metrics for _ in range(2)]
    assert rows[0]["ratio/min"] == rows[0]["ratio/max"] == 1.0
    assert rows[1]["ratio/min"] < 1.0 < rows[1]["ratio/max"]


def test_dead_groups_are_replaced_within_bounds_and_counted():
    never = Reward("never", 1, lambda completions, **_: [0.0] * len(completions))
    asked = []

    class Counting(TransformersEngine):
        def generate(self, policy, tasks, *arguments):
            asked.append(len(tasks))
            return super().generate(policy, tasks, *arguments)

    tasks = [dataclasses.replace(one, rules=("never@1",)) for one in TASKS]
    trainer = make_trainer(
        rewards=[never], tasks=tasks, engine=Counting(), dead_groups="resample", max_rounds=3, num_generations=4
    )
    metrics = trainer.step().metrics
    assert asked == [2, 2, 2]
    assert (metrics["sampling/dead_groups"], metrics["sampling/discarded_groups"]) == (6, 4)


def test_adaptive_groups_follow_difficulty_and_keep_their_mean():
    trainer = even_trainer(
        min_generations=2, max_generations=6, difficulty_sampling=True, per_device_train_batch_size=12, max_steps=3
    )
    for _ in range(3):
        sizes = [len(group.completions) for group in trainer.step().groups]
        assert sum(sizes) == 12 and all(2 <= size <= 6 for size in sizes)


def test_temperatures_mix_in_a_group():
    trainer = even_trainer(temperatures=(0.5, 1.5))
    step = trainer.step()
    assert [c.temperature for c in step.groups[0].completions] == [0.5, 1.5, 0.5, 1.5]
    assert step.metrics["ratio/max"] == 1.0


def test_truncated_completions_can_be_left_out():
    """They still count as sequences, and in the baseline of their group."""
    kept = even_trainer(mask_truncated_completions=True, max_completion_length=1, loss_type="grpo")
    before = copy(kept)
    assert kept.step().metrics["completions/clipped_ratio"] > 0.9
    assert moved(before, kept) < 1e-12


def test_the_overlong_penalty_is_a_reward_of_its_own():
    trainer = even_trainer(overlong_cache=4, max_completion_length=4)
    metrics = trainer.step().metrics
    assert -1 <= metrics["rewards/overlong/mean"] < 0


def test_the_kl_can_be_in_the_reward():
    trainer = make_trainer(kl_in_reward=True, beta=0.5)
    assert trainer.learner.beta == 0.0
    metrics = trainer.step().metrics
    assert metrics["kl_penalty"] > 1e-3


def test_beta_is_steered_towards_its_target():
    trainer = make_trainer(beta=0.1, kl_target=1e-9, kl_gain=0.5)
    trainer.step()
    assert trainer.learner.beta == pytest.approx(0.1 * 1.1)
    trainer = make_trainer(beta=0.1, kl_target=1e9, kl_gain=0.5)
    trainer.step()
    assert trainer.learner.beta == pytest.approx(0.1 * 0.9)


def test_an_all_wrong_group_can_imitate_the_reference_solution():
    never = Reward("never", 1, lambda completions, **_: [0.0] * len(completions))
    tasks = [dataclasses.replace(one, rules=("never@1",), columns={"solution": "5"}) for one in TASKS]
    trainer = make_trainer(
        rewards=[never], tasks=tasks, reference_column="solution", reference_weight=1.0, max_steps=30, warmup_steps=0
    )
    losses = [trainer.step().metrics["reference_nll"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_restricted_sampling_trains_on_what_could_be_drawn():
    trainer = even_trainer(top_k=5, steps_per_generation=2, max_steps=2, per_device_train_batch_size=8)
    first, second = trainer.step().metrics, trainer.step().metrics
    assert trainer.learner.loss_path == "logits"
    assert first["ratio/min"] == first["ratio/max"] == 1.0
    assert first["entropy"] <= math.log(5) + 1e-5
    assert second["ratio/min"] < 1.0


class Seen(Callback):
    def __init__(self):
        self.names = []

    def on_rollout(self, trainer, groups):
        self.names.append(f"rollout {len(groups)}")

    def on_step(self, trainer, metrics):
        self.names.append(f"step {metrics['step']}")

    def on_evaluation(self, trainer, evaluation):
        self.names.append("evaluation")

    def on_save(self, trainer, path):
        self.names.append(path.name)


def test_callbacks_see_everything_in_its_order(tmp_path):
    seen = Seen()
    trainer = even_trainer(
        held_out=TASKS[:2],
        run_dir=tmp_path,
        callbacks=[seen],
        max_steps=3,
        eval_steps=2,
        save_steps=2,
        report_to=("none",),
    )
    result = trainer.train()
    assert seen.names == [
        "evaluation", "rollout 2", "step 1", "rollout 2", "evaluation", "step 2", "checkpoint-2", "rollout 2",
        "evaluation", "step 3",
    ]  # fmt: skip
    assert [row["step"] for row in result.metrics] == [0, 1, 2, 3]
    assert [row["step"] for row in result.metrics if "eval_accuracy" in row] == [0, 2, 3]


RESUMED = {
    "several steps": {"steps_per_generation": 2, "per_device_train_batch_size": 4},
    "several iterations": {"num_iterations": 2},
    "iterations of several steps": {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4},
    "difficulty": {"difficulty_sampling": True, "min_generations": 2, "max_generations": 6},
    "steered": {"beta": 0.1, "kl_target": 0.01},
    "restricted": {"top_k": 5, "steps_per_generation": 2, "per_device_train_batch_size": 8},
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_is_the_run_that_went_on(case, tmp_path):
    """Bit for bit: parameters, completions and everything measured, from a checkpoint inside a window where it has
    one."""
    options = {"max_steps": 6, "report_to": ("none",), **RESUMED[case]}
    whole = even_trainer(run_dir=tmp_path / "whole", **options)
    expected = whole.train().metrics

    class StopAfterThree(Callback):
        def on_step(self, trainer, metrics):
            trainer.stop = metrics["step"] == 3

    with pytest.raises(Interrupted, match="interrupted after step 3"):
        even_trainer(run_dir=tmp_path / "cut", callbacks=[StopAfterThree()], **options).train()
    torch.manual_seed(99)
    resumed = even_trainer(run_dir=tmp_path / "cut", resume=str(tmp_path / "cut"), **options)
    rows = resumed.train().metrics
    assert [measured(row) for row in rows] == [measured(row) for row in expected]
    assert (tmp_path / "cut/samples.jsonl").read_text() == (tmp_path / "whole/samples.jsonl").read_text()
    for ours, theirs in zip(resumed.policy.parameters(), whole.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_was_written_after_the_checkpoint_is_written_again(tmp_path):
    """A kill between two checkpoints: the rows after the last one are not there twice."""
    options = {"max_steps": 4, "save_steps": 2, "report_to": ("none",)}
    whole = even_trainer(run_dir=tmp_path, **options).train().metrics
    for path in checkpoints(tmp_path)[1:]:
        path.rename(tmp_path / "elsewhere")
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "rew')
    rows = even_trainer(run_dir=tmp_path, resume=str(tmp_path), **options).train().metrics
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [measured(row) for row in written] == [measured(row) for row in whole] == [measured(row) for row in rows]


def test_another_run_is_not_gone_on_with(tmp_path):
    options = {"max_steps": 2, "save_steps": 1, "report_to": ("none",)}
    even_trainer(run_dir=tmp_path, **options).train()
    with pytest.raises(InputError, match="max_steps was 2 and is 3; learning_rate was 0.01 and is 0.02"):
        even_trainer(
            run_dir=tmp_path, resume=str(tmp_path), **options | {"max_steps": 3, "learning_rate": 0.02}
        ).train()
    other = Reward("even", 2, EVEN.function)
    with pytest.raises(InputError, match="reward even was even@1 and is even@2"):
        make_trainer(rewards=[other], tasks=TASKS, run_dir=tmp_path, resume=str(tmp_path), **options).train()
    allowed = {"resume": str(tmp_path), "allow_changed_rewards": True, **options}
    make_trainer(rewards=[other], tasks=TASKS, run_dir=tmp_path, **allowed).train()
    with pytest.raises(InputError, match="training data was"):
        make_trainer(rewards=[EVEN], tasks=TASKS[:5], run_dir=tmp_path, resume=str(tmp_path), **options).train()


def test_as_many_checkpoints_are_kept_as_asked(tmp_path):
    even_trainer(run_dir=tmp_path, max_steps=4, save_steps=1, save_total_limit=2, report_to=("none",)).train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-3", "checkpoint-4"]
    assert not list(tmp_path.glob(".*"))


def test_metrics_reach_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    even_trainer(run_dir=tmp_path, max_steps=2).train()
    events = EventAccumulator(str(tmp_path / "grpo")).Reload()
    assert [event.step for event in events.Scalars("reward")] == [1, 2]


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(InputError, match="--report-to tensorbored: there is no such tracker"):
        even_trainer(run_dir=tmp_path, report_to=("tensorbored",)).train()
