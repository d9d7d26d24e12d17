"""Penalties for the patterns of a policy file."""

import time

import pytest

from grpo.errors import InputError
from grpo.groups import Completion
from grpo.rewards import RewardRunner, find_rewards
from tests.grpo.conftest import task

POLICY = r"""
- {name: insult, pattern: "(?i)\\bidiot\\b", score: -1}
- {name: key, pattern: 'sk-[0-9a-f]{8}', score: -0.5}
- {name: note, pattern: TODO, score: 0}
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str) -> str:
        (tmp_path / "policy.yaml").write_text(text, encoding="utf-8")
        return f"safety:policy={tmp_path / 'policy.yaml'},workers=1"

    return written


@pytest.fixture(autouse=True)
def read_anew():
    from grpo.rewards.safety import read_policy

    read_policy.cache_clear()


def score(spec: str, *texts: str):
    return RewardRunner(find_rewards([spec])).score([Completion(task(), (5,), text, False) for text in texts])


def test_the_scores_of_what_matches_are_added_and_kept_by_name(write):
    scores = score(write(POLICY), "fine", "You IDIOT", "idiotic", "idiot: sk-0123abcd idiot", "TODO", "\x00sk-00000000")
    assert [row[0] for row in scores.rows] == [0.0, -1.0, 0.0, -1.5, 0.0, -0.5]
    assert scores.parts[3] == {"safety/insult": -1.0, "safety/key": -0.5, "safety/note": 0.0}


def test_a_pattern_matches_anywhere_in_a_long_text(write):
    assert score(write(POLICY), "x" * 10**6 + " idiot").rows == [(-1.0,)]


def test_a_pattern_that_takes_long_gives_no_verdict_on_its_text_alone(write):
    spec = write("- {name: slow, pattern: '(a+)+$', score: -1}") + ",timeout_s=0.5"
    started = time.monotonic()
    scores = score(spec, "aaa", "a" * 60 + "b", "b")
    assert time.monotonic() - started < 20
    assert scores.rows == [(-1.0,), (None,), (0.0,)]
    assert scores.parts[1] == {"safety/slow": None}


def test_the_rule_changes_with_what_the_file_says(write):
    before = find_rewards([write(POLICY)])[0].rule
    assert find_rewards([write(POLICY.replace("-0.5", "-0.6"))])[0].rule != before
    assert find_rewards([write(POLICY)])[0].rule == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must be a list"),
        ("a: 1", "it must be a list"),
        ("- [", "it is no YAML"),
        ("- x", "'x' must have a name, a pattern and a score"),
        ("- {name: a, pattern: b}", "must have a name, a pattern and a score"),
        ("- {name: a, pattern: b, score: -1, more: 1}", "and nothing else"),
        ("- {name: a, pattern: b, score: 1}", "the score of a is 1; it must be 0 or a negative number"),
        ("- {name: a, pattern: b, score: -.inf}", "the score of a is -inf"),
        ("- {name: a, pattern: b, score: .nan}", "the score of a is nan"),
        ("- {name: a, pattern: b, score: true}", "the score of a is True"),
        ("- {name: a, pattern: '(', score: -1}", "the pattern of a is '\\(', no regular expression"),
        ("- {name: a, pattern: 1, score: -1}", "the pattern of a is 1, no regular expression"),
        ("- {name: total, pattern: b, score: -1}", "a pattern cannot be called 'total'"),
        ("- {name: a, pattern: b, score: -1}\n- {name: a, pattern: c, score: -1}", "the name 'a' comes 2 times"),
    ],
)
def test_what_a_policy_says_wrongly_is_one_sentence(write, text, message):
    with pytest.raises(InputError, match=message) as caught:
        find_rewards([write(text)])
    assert "\n" not in str(caught.value)


def test_a_policy_that_is_not_there():
    with pytest.raises(InputError, match="policy 'nowhere.yaml': the file cannot be read"):
        find_rewards(["safety:policy=nowhere.yaml"])
    with pytest.raises(InputError, match="it needs its patterns: --reward safety:policy=FILE.yaml"):
        find_rewards(["safety"])
