"""Means over tokens are sums over counts."""

from grpo.metrics import TokenMeans


def test_parts_count_by_their_tokens():
    means = TokenMeans()
    means.add("clipped", 3 / 12, 12)
    means.add("clipped", 3 / 4, 4)
    assert means.read() == {"clipped": 0.375}
