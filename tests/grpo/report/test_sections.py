"""Where each metric is shown."""

import pytest

from grpo.report.sections import arrange


def places(*metrics):
    """{metric: [(section, panel, label)]}"""
    found = {}
    for section, panels in arrange(metrics):
        for panel, chosen in panels:
            for metric, label in chosen:
                found.setdefault(metric, []).append((section.title, panel.title, label))
    return found


@pytest.mark.parametrize(
    ("metric", "section", "label"),
    [
        ("eval_accuracy", "Accuracy and reward", "greedy"),
        ("eval_pass_at_8", "Accuracy and reward", "pass@8"),
        ("reward", "Accuracy and reward", "reward"),
        ("rewards/numeric/mean", "What the reward is made of", "numeric"),
        ("rewards/xml/format/mean", "What the reward is made of", "xml/format"),
        ("rewards/numeric/std", "What the reward is made of", "numeric"),
        ("frac_reward_zero_std", "Groups", "all equal"),
        ("sampling/discarded_tokens", "Groups", "tokens"),
        ("completions/clipped_ratio", "Length", "cut off"),
        ("accuracy/length_q4", "Length", "longest quarter"),
        ("kl", "Policy", "kl"),
        ("kl_k1", "Policy", "k1"),
        ("mismatch/kl", "Policy", "KL"),
        ("grad_norm", "Optimisation", "norm"),
        ("time/rollout", "Speed and memory", "rollout"),
        ("memory/peak_gb", "Speed and memory", "peak"),
    ],
)
def test_known_metrics_have_their_section(metric, section, label):
    ((found, _, name),) = places(metric)[metric]
    assert (found, name) == (section, label)


def test_a_metric_that_no_panel_knows_is_shown_last_under_its_own_name():
    found = places("my/metric", "kl")
    assert list(found) == ["kl", "my/metric"]
    assert found["my/metric"] == [("Other metrics", "my/metric", "my/metric")]


def test_an_interval_has_no_curve_of_its_own_and_a_lone_low_has():
    found = places("eval_accuracy", "eval_accuracy_low", "eval_accuracy_high", "sea_low")
    assert sorted(found) == ["eval_accuracy", "sea_low"]


def test_curves_come_in_the_order_of_the_panel():
    found = places("completions/max_length", "completions/min_length", "completions/mean_length")
    assert list(found) == [f"completions/{end}_length" for end in ("mean", "min", "max")]


def test_accuracy_is_also_drawn_against_length():
    assert [panel for _, panel, _ in places("eval_accuracy", "eval_mean_length")["eval_accuracy"]] == [
        "Held-out accuracy", "Held-out accuracy against length",
    ]  # fmt: skip
