"""What has to be the same for a run to go on: its options, data, rewards and number of processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.config import TrainConfig
from grpo.errors import InputError
from grpo.fingerprint import changed_rules

if TYPE_CHECKING:
    from grpo.groups import Task
    from grpo.rewards import Reward

# Where a run is written, and what it shows and keeps, may change.
FREE = (
    "output_dir", "overwrite_output_dir", "resume", "allow_changed_rewards", "save_steps", "save_total_limit",
    "report_to", "stop_on_alarms",
)  # fmt: skip
RULES = "rules"


def describe_run(config: TrainConfig, tasks: Sequence[Task], rewards: Sequence[Reward]) -> dict[str, Any]:
    """As plain JSON."""
    from grpo import processes

    data = hashlib.sha256()
    for task in tasks:
        data.update(dataclasses.replace(task, rules=()).fingerprint.encode())
    options = {name: value for name, value in config.to_dict().items() if name not in FREE}
    return json.loads(
        json.dumps(
            options
            | {
                "training data": data.hexdigest()[:16],
                RULES: [reward.rule for reward in rewards],
                "number of processes": processes.count(),
            }
        )
    )


def check_same_run(
    folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any], new_rules: bool = False
) -> str | None:
    """Raise InputError naming every difference. With `new_rules` other rewards are allowed, and returned in words."""
    rules = changed_rules(saved.get(RULES, ()), now.get(RULES, ()))
    differences = [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
        for name in dict.fromkeys([*saved, *now])
        if saved.get(name) != now.get(name) and name != RULES
    ]
    if rules and not new_rules:
        differences.append(f"{rules} (--allow-changed-rewards goes on all the same)")
    if differences:
        raise InputError(f"--resume {folder}: this is another run: {'; '.join(differences)}")
    return rules


def saved_options(run: Path) -> dict[str, Any]:
    """The options that a run was started with; raises InputError where they are not there."""
    path = run / "train_config.json"
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--resume {run}: {path.name} cannot be read: {error}") from error
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
