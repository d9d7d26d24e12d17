"""Where metrics go besides metrics.jsonl: the trackers that accelerate knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo.config import TrainConfig
from grpo.errors import InputError

PROJECT = "grpo"


class Trackers:
    """Sends rows of metrics to the trackers that the configuration names; only the first process has any."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        names = [name for name in config.report_to if name != "none"]
        for name in names:
            if name not in LOGGER_TYPE_TO_CLASS:
                known = ", ".join(sorted(map(str, LOGGER_TYPE_TO_CLASS)))
                raise InputError(f"--report-to {name}: there is no such tracker; choose from {known}, none")
            if not filter_trackers([name], run_dir):
                raise InputError(f"--report-to {name}: it is not installed: pip install {name}, or --report-to none")
        self._classes = [(name, LOGGER_TYPE_TO_CLASS[name]) for name in names]
        self._config = {name: _plain(value) for name, value in config.to_dict().items()}
        self._run_dir = run_dir
        self._open: list[Any] = []

    def start(self) -> None:
        for _, kind in self._classes:
            directory = {"logging_dir": self._run_dir} if kind.requires_logging_directory else {}
            tracker = kind(PROJECT, **directory)
            if hasattr(tracker, "start"):
                tracker.start()
            tracker.store_init_configuration(self._config)
            self._open.append(tracker)

    def log(self, row: dict[str, Any]) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        for tracker in self._open:
            tracker.log(values, step=row["step"])

    def close(self) -> None:
        for tracker in self._open:
            tracker.finish()
        self._open = []


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "none" if value is None else value
