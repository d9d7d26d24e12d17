"""Digests that are the same everywhere, and changes of rules in words."""

import pytest

from grpo.fingerprint import changed_rules, fingerprint


def test_a_fingerprint_is_that_of_the_content():
    assert fingerprint("1+1=", {"a": 1, "b": [2]}) == fingerprint("1+1=", {"b": (2,), "a": 1})
    assert fingerprint("1+1=", {"a": 1}) != fingerprint("1+1=", {"a": "1"})
    assert fingerprint("ab", "c") != fingerprint("a", "bc")


def test_a_fingerprint_is_the_same_on_every_machine():
    assert fingerprint("é", {"answer": 0.1}) == "f2c3125408a71e20"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (("math@1:ab", "format@1"), ("math@1:ab", "format@1"), None),
        (("math@1:ab",), ("math@1:cd",), "reward math was math@1:ab and is math@1:cd"),
        (("math@1",), ("math@2",), "reward math was math@1 and is math@2"),
        (("math@1",), ("math@1", "format@1"), "reward format@1 is new"),
        (("math@1", "length@1"), ("format@1", "math@2"),
         "reward math was math@1 and is math@2; reward length@1 is gone; reward format@1 is new"),
        (("a@1", "b@1"), ("b@1", "a@1"), "the rewards were in the order a@1, b@1 and are in b@1, a@1"),
    ],
)  # fmt: skip
def test_changed_rules_are_named(old, new, message):
    assert changed_rules(old, new) == message
