"""Each alarm speaks on a run that has its illness, and on no healthy one."""

import json
import random

import pytest

from grpo.cli import main
from grpo.diagnose import ALARMS, Diagnosis, diagnose

STEPS = 60


def healthy(step: int, rng: random.Random) -> dict:
    """A run that learns: accuracy from 40% to 80%, with noise."""
    progress = step / STEPS
    accuracy = 0.4 + 0.4 * progress + rng.gauss(0, 0.02)
    row = {
        "step": step,
        "reward": accuracy + 0.1,
        "rewards/composite/mean": accuracy + 0.1,
        "rewards/composite/correctness/mean": accuracy,
        "rewards/composite/format/mean": 0.8 + rng.gauss(0, 0.02),
        "rewards/composite/length_penalty/mean": -0.1 + rng.gauss(0, 0.01),
        "accuracy": accuracy,
        "frac_reward_zero_std": 0.3 + 0.2 * progress,
        "frac_all_right": 0.1 + 0.4 * progress,
        "frac_all_wrong": 0.2 - 0.2 * progress,
        "frac_no_verdict": 0.0,
        "frac_invalid_format": 0.2,
        "completions/mean_length": 100 + 10 * progress + rng.gauss(0, 3),
        "completions/clipped_ratio": 0.05,
        "distinct_answers": 4 - progress,
        "repetition/ngram": 0.1,
        "kl": 0.1 * progress,
        "entropy": 0.8 - 0.4 * progress,
        "grad_norm": 0.5 + abs(rng.gauss(0, 0.2)),
        "mismatch/logp_difference_mean": 0.01,
    }
    return row | ({"eval_accuracy": 0.4 + 0.4 * progress} if step % 20 == 0 else {})


def run(change=lambda row, progress: None, steps: int = STEPS) -> list[dict]:
    """Rows of a healthy run that `change` makes ill."""
    rng = random.Random(0)
    rows = [healthy(step, rng) for step in range(steps + 1)]
    for row in rows:
        change(row, row["step"] / STEPS)
    return rows


def no_better(row: dict) -> None:
    row["accuracy"] = row["rewards/composite/correctness/mean"] = 0.4 + 0.01 * (row["step"] % 3)
    if "eval_accuracy" in row:
        row["eval_accuracy"] = 0.4


def format_hacking(row, progress):
    no_better(row)
    row["rewards/composite/format/mean"] = progress
    row["reward"] = row["rewards/composite/mean"] = 0.4 + progress


def length_hacking(row, progress):
    no_better(row)
    row["rewards/composite/length_penalty/mean"] = -1 + progress
    row["completions/mean_length"] = 100 - 60 * progress
    row["reward"] = row["rewards/composite/mean"] = 0.4 - 1 + progress


def reward_hacking(row, progress):
    no_better(row)
    row["rewards/style/mean"] = progress
    row["reward"] = 0.4 + progress


def drift(row, progress):
    no_better(row)
    row["reward"] = 0.4
    row["kl"] = 0.01 * 2 ** (10 * progress)


def no_signal(row, progress):
    row.update({"frac_reward_zero_std": 0.97, "frac_all_wrong": 0.95, "frac_all_right": 0.02})


def verbosity(row, progress):
    no_better(row)
    row["reward"] = 0.4
    row["completions/mean_length"] = 100 + 150 * progress


def collapse(row, progress):
    row.update({"entropy": 0.8 * 0.01**progress, "distinct_answers": 1.0})


def truncation(row, progress):
    row["completions/clipped_ratio"] = progress


def invalid_format(row, progress):
    row["frac_invalid_format"] = 0.9


def repetition(row, progress):
    row["repetition/ngram"] = 0.7 * progress


def mismatch(row, progress):
    row["mismatch/logp_difference_mean"] = 0.5


def gradient_spikes(row, progress):
    if row["step"] % 10 == 5:
        row["grad_norm"] = 100.0


def verifier_errors(row, progress):
    row.update({"frac_no_verdict": 0.2, "reward_failures/composite": 3.0})


def never_right(row, progress):
    row["accuracy"] = row["rewards/composite/correctness/mean"] = row["reward"] = 0.0
    if "eval_accuracy" in row:
        row["eval_accuracy"] = 0.0


def nothing_changes(row, progress):
    row["grad_norm"] = 0.0


def overfitting(row, progress):
    row["accuracy"] = 0.4 + 0.5 * progress
    if "eval_accuracy" in row:
        row["eval_accuracy"] = 0.4 + 0.05 * progress


ILL = {
    change.__name__: change
    for change in (
        format_hacking, length_hacking, reward_hacking, drift, no_signal, verbosity, collapse, truncation,
        invalid_format, repetition, mismatch, gradient_spikes, verifier_errors, never_right, nothing_changes,
        overfitting,
    )
}  # fmt: skip


def test_every_alarm_has_an_ill_run():
    assert set(ILL) == set(ALARMS)


def test_a_healthy_run_raises_none():
    assert diagnose(run()) == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_raises_none(seed):
    rng = random.Random(seed)

    def noisy(row, progress):
        for name, value in row.items():
            if name not in ("step", "eval_accuracy") and not name.startswith("frac"):
                row[name] = value * (1 + rng.gauss(0, 0.05))
        if "eval_accuracy" in row:
            row["eval_accuracy"] += rng.gauss(0, 0.03)

    assert diagnose(run(noisy)) == []


@pytest.mark.parametrize("name", ALARMS)
def test_an_ill_run_raises_its_alarm_and_no_other(name):
    alarms = diagnose(run(ILL[name]))
    assert [alarm.name for alarm in alarms] == [name]
    assert alarms[0].message and alarms[0].advice and alarms[0].severity in ("warning", "critical")
    assert "nan" not in alarms[0].message


@pytest.mark.parametrize("name", ALARMS)
def test_a_run_that_has_just_begun_raises_none(name):
    assert diagnose(run(ILL[name], steps=3)) == []


def test_evidence_names_the_part_and_the_numbers():
    (alarm,) = diagnose(run(format_hacking))
    assert "composite/format" in alarm.message and "40.0% to 40.0%" in alarm.message
    (alarm,) = diagnose(run(length_hacking))
    assert "composite/length_penalty" in alarm.message and "mean length went from" in alarm.message
    (alarm,) = diagnose(run(no_signal))
    assert "too hard" in alarm.message
    (alarm,) = diagnose(run(verifier_errors))
    assert "composite" in alarm.message


def test_without_held_out_problems_training_accuracy_stands_in():
    rows = run(format_hacking)
    for row in rows:
        row.pop("eval_accuracy", None)
    assert [alarm.name for alarm in diagnose(rows)] == ["format_hacking"]


def test_a_reward_that_rises_with_accuracy_is_no_hacking():
    def better(row, progress):
        row["rewards/composite/format/mean"] = progress
        row["reward"] = row["accuracy"] + progress

    assert diagnose(run(better)) == []


def test_sparse_rows_are_read():
    """Rows of optimizer steps between two samplings have no rollout metrics."""
    rows = [row if row["step"] % 2 == 0 else {"step": row["step"], "grad_norm": 0.5} for row in run(truncation)]
    assert [alarm.name for alarm in diagnose(rows)] == ["truncation"]


def test_alarms_that_were_raised_are_not_raised_again():
    diagnosis = Diagnosis(raised=["truncation"])
    assert [alarm for row in run(truncation) for alarm in diagnosis.add(row)] == []


def words(tmp_path, model_folder, data_file, *more: str) -> list[str]:
    """A run whose reward never says yes."""
    return [
        "train", "--model", str(model_folder), "--data", str(data_file), "--reward", f"{tmp_path}/never.py:never",
        "--num-generations", "2", "--per-device-train-batch-size", "4", "--gradient-accumulation-steps", "1",
        "--max-completion-length", "2", "--max-steps", "14", "--report-to", "none", "--eval-size", "2",
        "--output-dir", str(tmp_path / "run"), *more,
    ]  # fmt: skip


@pytest.fixture
def never(tmp_path):
    (tmp_path / "never.py").write_text("def never(completions, **_):\n    return [0.0] * len(completions)\n")


def test_a_run_says_its_alarms_once_and_keeps_them(never, model_folder, data_file, tmp_path, capsys):
    assert main(words(tmp_path, model_folder, data_file)) == 0
    assert capsys.readouterr().out.count("alarm: never_right: not one completion") == 1
    alarms = [json.loads(line) for line in (tmp_path / "run" / "alarms.jsonl").read_text().splitlines()]
    assert [(alarm["name"], alarm["step"]) for alarm in alarms] == [("truncation", 10), ("never_right", 10)]


def test_chosen_alarms_end_the_run_with_a_checkpoint_and_it_can_go_on(never, model_folder, data_file, tmp_path, capsys):
    assert main(words(tmp_path, model_folder, data_file, "--stop-on-alarms", "drift", "never_right")) == 130
    out = tmp_path / "run"
    assert (out / "checkpoint-10").is_dir()
    assert main(["train", "--resume", str(out)]) == 0
    assert capsys.readouterr().out.count("alarm: never_right") == 1
    assert (out / "alarms.jsonl").read_text().count("never_right") == 1


def test_an_unknown_alarm_is_refused(model_folder, data_file, tmp_path, capsys):
    assert main(words(tmp_path, model_folder, data_file, "--stop-on-alarms", "drifting")) == 2
    assert "--stop-on-alarms" in capsys.readouterr().err
