"""docs/rewards.md lists the rewards that there are, with the columns that they need."""

import re
from pathlib import Path

from grpo.rewards import REWARDS

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What there is")[2].partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", TABLE, re.MULTILINE))


def test_every_reward_is_in_the_table():
    assert set(ROWS) == set(REWARDS)


def test_the_columns_are_those_that_it_cannot_do_without():
    for name, reward in REWARDS.items():
        missing = [column for column in reward.columns if f"`{column}`" not in ROWS.get(name, "")]
        assert missing == [], name
