"""docs/when-it-does-not-learn.md says what each alarm means."""

import re
from pathlib import Path

from grpo.diagnose import ALARMS, RULES

PAGE = (Path(__file__).parents[2] / "docs" / "when-it-does-not-learn.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (critical|warning) \| .+ \| \[.+\]\(#.+\) \|$", PAGE, re.MULTILINE)


def test_every_alarm_is_in_the_table_once():
    assert sorted(name for name, _ in ROWS) == sorted(ALARMS)


def test_severities_are_those_of_the_rules():
    assert dict(ROWS) == {rule.name: rule.severity for rule in RULES}
