"""The training loop: questions -> rollout -> rewards -> groups and advantages -> loss -> step."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo import checkpoint, interrupt, processes
from grpo.callbacks import Callback
from grpo.collect import Collected, Collector
from grpo.config import TrainConfig
from grpo.console import Display
from grpo.diagnose import Diagnosis
from grpo.difficulty import Difficulty
from grpo.engines import Engine, make_engine
from grpo.evaluate import Evaluation, evaluate
from grpo.groups import Group, Task
from grpo.kl_control import AdaptiveKLController
from grpo.learner import Learner
from grpo.merging import merged_if
from grpo.output import RunFiles, save_adapter
from grpo.policy import Policy
from grpo.prepare import Preparation
from grpo.probe import pass_at_metrics, probe, probe_tasks, several_answers
from grpo.questions import Questions
from grpo.resume import check_same_run, describe_run
from grpo.rewards import Reward, RewardRunner
from grpo.rollout_metrics import rollout_metrics
from grpo.samples import evaluation_samples, group_samples
from grpo.window import Window


@dataclass(frozen=True)
class Step:
    """One optimizer step: what it measured, and the groups that were sampled for it, if any were."""

    metrics: dict[str, Any]
    groups: list[Group]


@dataclass(frozen=True)
class Result:
    """What a run came to. `before` is None for a run that was resumed, both are without held-out tasks."""

    output_dir: Path | None
    before: Evaluation | None
    after: Evaluation | None
    metrics: list[dict[str, Any]]


class GRPOTrainer:
    """GRPO on `tasks`. Each `step` takes one optimizer step, and samples completions where those that are there are
    used up; `train` takes all of them, evaluates, saves and writes a run's files.

    Args:
        config: every option; what concerns data and models has been used by then (see `grpo.run.build`).
        policy: the model with its adapters.
        tasks: the questions to train on.
        rewards: what judges the completions; `config.reward_weights` has a weight for each.
        held_out: the questions that `evaluate` asks; without any nothing is evaluated.
        run_dir: the folder for metrics, samples and checkpoints; None: nothing is written.
        engine: what samples; by default what the configuration names.
        callbacks: see `grpo.callbacks`.
        display: where lines for a person go.
    """

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        tasks: Sequence[Task],
        rewards: Sequence[Reward],
        held_out: Sequence[Task] = (),
        run_dir: Path | None = None,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
        display: Display | None = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.tasks = tasks
        self.held_out = held_out
        self.run_dir = run_dir
        self.callbacks = callbacks
        self.display = display or Display()
        self.steps_done = 0
        self.stop = False
        self.window: Window | None = None
        self.probed = probe_tasks(held_out or tasks, config.probe_questions)
        self.diagnosis = Diagnosis()
        self.engine = engine or make_engine(config)
        self.rewards = RewardRunner(rewards, config.on_reward_error, config.reward_timeout)
        wants_difficulty = config.difficulty_sampling or config.min_generations is not None
        difficulty = Difficulty(config.difficulty_decay, floor=config.difficulty_floor) if wants_difficulty else None
        self.questions = Questions(tasks, config.seed, difficulty, by_difficulty=config.difficulty_sampling)
        self.collector = Collector(config, policy, self.engine, self.rewards, self.questions)
        self.learner = Learner(config, policy, self.display.say)
        self.preparation = Preparation(config, self.learner, self.collector.advantages)
        self.kl_weight = config.beta
        self.kl_controller = (
            AdaptiveKLController(config.beta, config.kl_target, config.kl_gain) if config.kl_target else None
        )

    @property
    def reward_names(self) -> list[str]:
        return [reward.name for reward in self.rewards.rewards]

    @property
    def is_main(self) -> bool:
        return processes.rank() == 0

    def step(self) -> Step:
        """One optimizer step."""
        started = time.perf_counter()
        metrics: dict[str, Any] = {"step": self.steps_done + 1}
        groups: list[Group] = []
        sampled_tokens = 0
        if self.window is None or self.window.is_used_up:
            collected = self.collect()
            groups = collected.groups
            sampled_tokens = sum(len(c.ids) for g in [*groups, *collected.selected.discarded] for c in g.completions)
            prepared = time.perf_counter()
            done = self.preparation.prepare(groups, self.collector.weights, self.kl_weight)
            self.window = done.window
            metrics |= self.sampling_metrics(collected) | done.metrics
            metrics["time/reference"] = time.perf_counter() - prepared
        training = time.perf_counter()
        window = self.window
        data, learned = self.learner.step(
            self.steps_done, window.steps[window.place], moved=window.taken > 0, again=window.is_again
        )
        window.steps[window.place] = data
        window.taken += 1
        self.steps_done += 1
        metrics |= learned
        metrics["time/train"] = time.perf_counter() - training
        self.steer(metrics)
        metrics["time/step"] = time.perf_counter() - started
        metrics["tokens_per_second"] = (sampled_tokens or data.whole.tokens) / metrics["time/step"]
        if self.policy.device.type == "cuda":
            metrics["memory/peak_gb"] = torch.cuda.max_memory_allocated(self.policy.device) / 2**30
        return Step(metrics, groups)

    def train(self) -> Result:
        """All steps that are left, with evaluations, checkpoints and the files of a run.

        With `config.resume` it goes on from there. Raises Interrupted after a signal, with a checkpoint saved.
        """
        files = RunFiles(self.run_dir, self.config)
        before = after = None
        rows: list[dict[str, Any]] = []
        try:
            if self.config.resume is not None:
                self.load_checkpoint(checkpoint.find_checkpoint(Path(self.config.resume)))
                rows = files.go_on(self.steps_done)
                for row in rows:
                    self.diagnosis.add(row)
            else:
                files.start()
                before = self.start_into(rows, files)
            with self.display.training(self.config.max_steps, self.steps_done), interrupt.listening() as request:
                while self.steps_done < self.config.max_steps:
                    after = self.step_into(rows, files)
                    self.end_if_asked(request)
            files.finish(self.policy)
        finally:
            files.close()
        if after is not None:
            self.display.say(f"held-out greedy accuracy after:  {described(after)}")
        return Result(self.run_dir, before, after, rows)

    def step_into(self, rows: list[dict[str, Any]], files: RunFiles) -> Evaluation | None:
        """One step with what belongs to it, written and shown; returns its evaluation, if it had one."""
        config = self.config
        step = self.step()
        row, evaluation = step.metrics, None
        samples = group_samples(self.steps_done, step.groups[0], self.collector.names) if step.groups else []
        is_last = self.steps_done == config.max_steps
        if is_last or (config.eval_steps and self.steps_done % config.eval_steps == 0):
            evaluation, answers = self.examine(row)
            samples += answers
        rows.append(row)
        files.write(row, samples)
        self.display.step(self.steps_done, row)
        self.watch(row, files)
        for callback in self.callbacks:
            callback.on_step(self, row)
        if self.run_dir is not None and config.save_steps and self.steps_done % config.save_steps == 0:
            self.save_checkpoint()
        return evaluation

    def end_if_asked(self, request: interrupt.Request) -> None:
        """Save and raise Interrupted where any process was asked to end, unless everything is done anyway."""
        number = processes.largest(request.number or (signal.SIGINT if self.stop else 0))
        if not number or self.steps_done >= self.config.max_steps:
            return
        if self.run_dir is None:
            raise interrupt.Interrupted(number, f"interrupted after step {self.steps_done}")
        path = self.save_checkpoint()
        raise interrupt.Interrupted(
            number, f"interrupted after step {self.steps_done}; go on with: grpo train --resume {path.parent}"
        )

    def start_into(self, rows: list[dict[str, Any]], files: RunFiles) -> Evaluation | None:
        """What the policy answers before training, written and shown."""
        row: dict[str, Any] = {"step": 0}
        evaluation, samples = self.examine(row)
        if evaluation is None:
            files.write_samples(samples)
            return None
        rows.append(row)
        files.write(row, samples)
        self.diagnosis.add(row)
        self.display.say(f"held-out greedy accuracy before: {described(evaluation)}")
        return evaluation

    def examine(self, row: dict[str, Any]) -> tuple[Evaluation | None, list[dict[str, Any]]]:
        """Evaluate, its metrics into `row`, and probe; returns the evaluation and the answers as rows of samples."""
        started = time.perf_counter()
        step, names = row["step"], self.reward_names
        samples = evaluation_samples(step, self.probe(), names, "probe") if self.probed else []
        evaluation = None
        if self.held_out:
            evaluation = self.evaluate()
            row |= evaluation.metrics()
            samples += evaluation_samples(step, evaluation, names)
            if self.config.eval_samples:
                with self.answering():
                    own = several_answers(self.config, self.policy, processes.share(self.held_out), self.rewards)
                row |= pass_at_metrics(processes.gather(own.correct))
        row["time/evaluation"] = time.perf_counter() - started
        return evaluation, samples

    def watch(self, row: dict[str, Any], files: RunFiles) -> None:
        """Raise the alarms that a row of metrics calls for."""
        for alarm in self.diagnosis.add(row):
            files.raise_alarm(alarm)
            self.display.say(f"alarm: {alarm.name}: {alarm.message}. Try: {alarm.advice}")
            if {alarm.name, "all"} & set(self.config.stop_on_alarms):
                self.stop = True

    def collect(self) -> Collected:
        """Sample and judge completions for the next optimizer steps."""
        with self.learner.autocast():
            collected = self.collector.collect(self.steps_done)
        for callback in self.callbacks:
            callback.on_rollout(self, collected.groups)
        return collected

    def steer(self, metrics: dict[str, Any]) -> None:
        """What follows from a step for the next one: the weight of the KL, and the reference."""
        config = self.config
        kl = metrics.get("kl_penalty" if config.kl_in_reward else "kl")
        if self.kl_controller is not None and kl is not None:
            self.kl_weight = self.kl_controller.update(kl)
            if not config.kl_in_reward:
                self.learner.beta = self.kl_weight
        if config.sync_ref_steps and self.steps_done % config.sync_ref_steps == 0:
            self.policy.sync_reference(config.sync_ref_alpha)

    def sampling_metrics(self, collected: Collected) -> dict[str, float]:
        metrics = rollout_metrics(collected.groups, self.collector.names, self.collector.weights)
        if self.config.dead_groups != "keep":
            metrics |= collected.selected.metrics()
        for name, seconds in collected.seconds.items():
            metrics[f"time/{name}"] = seconds
        failures = processes.gather(list(collected.failures.items()))
        for name in {name for name, _ in failures}:
            metrics[f"reward_failures/{name}"] = float(sum(n for other, n in failures if other == name))
        return metrics

    def evaluate(self) -> Evaluation:
        """Greedy answers to the held-out tasks, each process its share of them."""
        config = self.config
        with self.answering():
            own = evaluate(
                self.policy,
                processes.share(self.held_out),
                self.rewards,
                config.max_completion_length,
                config.rollout_batch_size,
            )
        evaluation = gathered(own)
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluation)
        return evaluation

    def probe(self) -> Evaluation:
        """Sampled answers to the probe's tasks, with the same random numbers each time."""
        with self.answering():
            return gathered(probe(self.config, self.policy, processes.share(self.probed), self.rewards))

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The policy as it answers outside of training."""
        with self.learner.autocast(), merged_if(self.policy, self.config.merge_lora):
            yield

    def save_checkpoint(self) -> Path:
        """A checkpoint of this moment in the run's folder, whole or not at all."""
        if self.run_dir is None:
            raise ValueError("this trainer has no run_dir: there is no place for a checkpoint")

        def write(folder: Path) -> None:
            checkpoint.write_state(folder, self.state())
            checkpoint.write_training(folder, self.policy, self.learner.optimizer)
            checkpoint.write_process(
                folder, {"window": self.window.state_dict() if self.window and not self.window.is_used_up else None}
            )
            save_adapter(self.policy, folder)

        path = checkpoint.save_checkpoint(self.run_dir, self.steps_done, write, self.config.save_total_limit)
        for callback in self.callbacks:
            callback.on_save(self, path)
        return path

    def state(self) -> dict[str, Any]:
        return {
            "steps_done": self.steps_done,
            "micro_batch_size": self.learner.micro_batch_size,
            "kl_weight": self.kl_weight,
            "questions": self.questions.state_dict(),
            "run": describe_run(self.config, self.tasks, self.rewards.rewards),
        }

    def load_checkpoint(self, folder: Path) -> None:
        """Go on where a checkpoint was saved; raises InputError where it is of another run, naming what differs."""
        state = checkpoint.read_state(folder)
        now = describe_run(self.config, self.tasks, self.rewards.rewards)
        changed = check_same_run(folder, state["run"], now, self.config.allow_changed_rewards)
        if changed:
            self.display.say(f"warning: {changed}: what is rewarded is no longer what it was")
        checkpoint.read_training(folder, self.policy, self.learner.optimizer)
        self.steps_done = state["steps_done"]
        self.learner.micro_batch_size = state["micro_batch_size"]
        self.kl_weight = state["kl_weight"]
        if self.kl_controller is not None:
            self.kl_controller.beta = self.kl_weight
            if not self.config.kl_in_reward:
                self.learner.beta = self.kl_weight
        self.questions.load_state_dict(state["questions"])
        window = checkpoint.read_process(folder)["window"]
        self.window = None if window is None else Window.from_state_dict(window)

    def close(self) -> None:
        """End what the verifiers started."""
        self.rewards.close()


def gathered(own: Evaluation) -> Evaluation:
    """The answers of all processes."""
    return Evaluation(
        tuple(processes.gather(own.completions)),
        tuple(processes.gather(own.rewards)),
        tuple(processes.gather(own.parts)),
    )


def described(evaluation: Evaluation) -> str:
    return f"{evaluation.accuracy:.1%} of {len(evaluation.correct)} problems"
