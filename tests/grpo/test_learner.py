"""The update: the same however it is split, exactly on-policy at first, and nothing where there is nothing to learn."""

import dataclasses
import math

import pytest
import torch

from grpo.advantages import AdvantageConfig
from grpo.batch import Totals, TrainSequence
from grpo.config import LOSS_TYPES, TrainConfig
from grpo.groups import Completion, Group
from grpo.learner import Example, StepData
from grpo.policy import make_policy
from grpo.rewards import find_rewards
from grpo.trainer import GRPOTrainer
from grpo.window import Window, training_sequences
from grpo_kernels import token_logps
from tests.grpo.conftest import EOS, character_tokenizer, task, tiny_model, tiny_policy
from tests.grpo.test_console import display

LENGTHS = (1, 3, 2, 4)
CONFIG = TrainConfig(
    num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=1, max_completion_length=4,
    learning_rate=1e-2, warmup_steps=0, max_steps=4,
)  # fmt: skip


def make_trainer(
    policy=None, rewards=None, tasks=None, held_out=(), run_dir=None, callbacks=(), engine=None, **options
):
    config = dataclasses.replace(CONFIG, **options)
    tasks = tasks or [task(str(n), prompt=f"{n}+1=", answer=str(n + 1)) for n in range(4)]
    rewards = rewards or find_rewards(["numeric"])
    shown, _ = display(terminal=False)
    return GRPOTrainer(
        config, policy or tiny_policy(), tasks, rewards, held_out, run_dir, engine, callbacks, display=shown
    )


def window_of(trainer: GRPOTrainer, of: list[Group]) -> Window:
    return trainer.preparation.prepare(of, trainer.collector.weights, trainer.kl_weight).window


def update(trainer: GRPOTrainer, of: list[Group]) -> dict[str, float]:
    """All the optimizer steps on these groups; of each metric, the last value."""
    window, metrics = window_of(trainer, of), {}
    while not window.is_used_up:
        place = window.place
        data, row = trainer.learner.step(
            window.taken, window.steps[place], moved=window.taken > 0, again=window.is_again
        )
        window.steps[place] = data
        metrics |= row
        window.taken += 1
    return metrics


def step_data(sequences: list[TrainSequence], examples: list[Example] = ()) -> StepData:
    return StepData(sequences, Totals.of(sequences), list(examples), sum(len(e.completion_ids) for e in examples))


def groups(*rewards: tuple[float | None, ...]) -> list[Group]:
    """Groups of four completions of different lengths, with these rewards."""
    made = []
    for n, row in enumerate(rewards):
        one = task(str(n), prompt=f"{n}+1" + "=" * (n + 1))
        texts = [(*range(5 + n, 4 + n + length), EOS) for length in LENGTHS]
        completions = tuple(Completion(one, ids, "", truncated=False) for ids in texts)
        made.append(Group(f"1.{n}", one, completions, tuple((r,) for r in row)))
    return made


def moved(before: list[torch.Tensor], trainer: GRPOTrainer) -> float:
    return max((a - b).abs().max().item() for a, b in zip(before, trainer.policy.parameters(), strict=True))


def copy(trainer: GRPOTrainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.policy.parameters()]


def gradient(trainer: GRPOTrainer, of: list[Group]) -> torch.Tensor:
    """The whole gradient of one update, before clipping, as one vector."""
    caught = []
    trainer.learner.update = lambda _: caught.append([p.grad.flatten() for p in trainer.policy.parameters()]) or 0.0
    update(trainer, of)
    return torch.cat(caught[0])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_micro_batches_do_not_change_the_update(loss_type, beta):
    window = groups((1.0, 0.0, 0.0, 0.5), (1.0, 1.0, 1.0, 1.0))
    whole = gradient(make_trainer(loss_type=loss_type, beta=beta), window)
    assert whole.abs().max() > 1e-3
    for size, steps in ((4, 2), (2, 4), (1, 8)):
        split = make_trainer(
            loss_type=loss_type, beta=beta, per_device_train_batch_size=size, gradient_accumulation_steps=steps
        )
        assert (gradient(split, window) - whole).norm() < 1e-4 * whole.norm()


@pytest.mark.parametrize(("loss_type", "share"), [("dapo", (0.25, 0.75)), ("grpo", (0.5, 0.5)), ("luspo", (0.5, 1.5))])
def test_the_window_is_averaged_as_the_loss_type_says(loss_type, share):
    """Two completions of 1 and 3 tokens: what the ratios' weights add up to for each."""
    one = task()
    pair = tuple(Completion(one, ids, "", truncated=False) for ids in ((EOS,), (5, 6, EOS)))
    trainer = make_trainer(loss_type=loss_type, scale_rewards="none", num_generations=2)

    group = Group("1", one, pair, ((2.0,), (0.0,)))
    learner = trainer.learner
    parts = learner.parts(training_sequences([group], (1.0,), AdvantageConfig("none")), again=False)
    whole = Totals(2, 4)
    loss = sum(learner.part_loss(part, learner.collate(part.sequences), whole).loss.item() for part in parts)
    # Advantages are +1 and -1 and the ratio is 1, so the loss is minus the first weight plus the second.
    assert loss == pytest.approx(share[1] - share[0], abs=1e-6)


def test_the_first_pass_is_exactly_on_policy():
    """The ratio is 1, whatever the adapters; the KL to the base is 0 only while they are new."""
    metrics = update(make_trainer(epsilon=0.0, num_iterations=1), groups((1.0, 0.0, 0.0, 0.5)))
    assert metrics["clip_ratio/region_mean"] == 0.0
    assert metrics["ratio/min"] == metrics["ratio/max"] == 1.0
    assert metrics["kl"] > 1e-3
    fresh = update(make_trainer(policy=tiny_policy(trained=False)), groups((1.0, 0.0, 0.0, 0.5)))
    assert fresh["kl"] < 1e-6


def test_later_iterations_compare_with_the_policy_that_sampled():
    window = groups((1.0, 0.0, 0.0, 0.5))
    assert update(make_trainer(num_iterations=3, epsilon=1e-6), window)["clip_ratio/region_mean"] > 0.1
    assert update(make_trainer(num_iterations=3, epsilon=1e6), window)["clip_ratio/region_mean"] == 0.0


def test_an_update_makes_better_completions_more_probable():
    trainer = make_trainer(learning_rate=1e-4)
    window = groups((1.0, 0.0, 0.0, 0.0))
    batch = trainer.learner.collate(training_sequences(window, (1.0,)))

    def preference() -> float:
        """The log-probabilities [B, T] of the completions, weighted with their advantages."""
        with torch.no_grad():
            logps = token_logps(trainer.policy.logits(batch), batch.completion_ids)
        return (logps * batch.completion_mask * batch.advantages[:, None]).sum().item()

    before = preference()
    update(trainer, window)
    assert preference() > before + 1e-3


def test_groups_without_a_difference_change_nothing_and_cost_no_backward():
    trainer = make_trainer()
    before = copy(trainer)
    parts = trainer.learner.parts(training_sequences(groups((1.0,) * 4, (0.0,) * 4), (1.0,)), again=False)
    assert [part.learns for part in parts] == [False]
    graphs = []
    backbone = trainer.policy.model.get_base_model().model
    backbone.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    metrics = update(trainer, groups((1.0,) * 4, (0.0,) * 4))
    assert moved(before, trainer) == 0.0
    assert not any(graphs) and graphs
    assert metrics["grad_norm"] == 0.0
    assert metrics["entropy"] > 0


def test_a_gradient_is_used_once():
    trainer = make_trainer()
    update(trainer, groups((1.0, 0.0, 0.0, 0.0)))
    before = copy(trainer)
    update(trainer, groups((1.0,) * 4))
    assert moved(before, trainer) == 0.0


def test_with_beta_they_are_pulled_to_the_reference():
    trainer = make_trainer(beta=0.5)
    before = copy(trainer)
    update(trainer, groups((1.0,) * 4))
    assert moved(before, trainer) > 0


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_completions_without_a_verdict_are_not_trained_on(beta):
    """The gradient is that of the group without them, also of the KL term and of the averages."""
    with_none = groups((1.0, None, 0.0, None))[0]
    kept = tuple(with_none.completions[n] for n in (0, 2))
    without = Group("1.0", with_none.task, kept, ((1.0,), (0.0,)))
    torch.testing.assert_close(
        gradient(make_trainer(beta=beta), [with_none]), gradient(make_trainer(beta=beta), [without])
    )
    sequences = training_sequences([with_none], (1.0,), AdvantageConfig("none"))
    assert [s.advantage for s in sequences] == [0.5, -0.5]


def test_a_batch_without_any_verdict_changes_nothing():
    trainer = make_trainer()
    before = copy(trainer)
    assert update(trainer, groups((None,) * 4))["grad_norm"] == 0.0
    assert moved(before, trainer) == 0.0


def test_reward_weights_make_the_total():
    group = groups((1.0, 0.0, 0.0, 0.0))[0]
    two = dataclasses.replace(group.task, rules=("a@1", "b@1"))
    both = Group(
        "1", two, tuple(dataclasses.replace(c, task=two) for c in group.completions[:2]), ((1.0, 0.0), (0.0, 4.0))
    )
    advantages = [s.advantage for s in training_sequences([both], (1.0, 0.5), AdvantageConfig("none"))]
    assert advantages == [-0.5, 0.5]


def test_gradients_are_clipped():
    trainer = make_trainer(max_grad_norm=1e-3)
    norms = []
    trainer.learner.optimizer.step = lambda: norms.append(
        torch.cat([p.grad.flatten() for p in trainer.policy.parameters()]).norm()
    )
    metrics = update(trainer, groups((1.0, 0.0, 0.0, 0.0)))
    assert metrics["grad_norm"] > 1e-2
    assert norms[0].item() == pytest.approx(1e-3, rel=1e-3)


def test_a_gradient_that_is_not_finite_stops_the_run():
    trainer = make_trainer()
    next(iter(trainer.policy.parameters())).data.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="step 1 has norm nan: lower --learning-rate"):
        update(trainer, groups((1.0, 0.0, 0.0, 0.0)))


@pytest.mark.parametrize("path", ["linear", "logits"])
def test_activations_that_are_computed_again_have_the_same_dropout(path):
    grads = []
    for recompute in (False, True):
        policy = make_policy(
            tiny_model("llama"), character_tokenizer(), 4, 8, lora_dropout=0.3, gradient_checkpointing=recompute
        )
        for n, parameter in enumerate(policy.parameters()):
            torch.manual_seed(n)
            torch.nn.init.normal_(parameter, std=0.2)
        torch.manual_seed(0)
        # Of prompts that are all different, so that both ways run the same passes.
        window = [Group(g.id, g.task, g.completions[:1] + g.completions[3:], g.rewards[:1] + g.rewards[3:])
                  for g in groups((1.0, 0.0, 0.0, 0.5))]  # fmt: skip
        grads.append(gradient(make_trainer(policy, loss_path=path, report_kl=False, per_device_train_batch_size=1,
                                           gradient_accumulation_steps=4), window))  # fmt: skip
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-6)


def test_when_memory_runs_out_the_step_is_taken_in_smaller_parts():
    """The update is that of a run that had them from the start, and the size stays small."""
    window = groups((1.0, 0.0, 0.0, 0.5))
    small = make_trainer(per_device_train_batch_size=1, gradient_accumulation_steps=4)
    expected = gradient(small, window)
    trainer = make_trainer()
    part_loss = trainer.learner.part_loss

    def limited(part, batch, whole):
        output = part_loss(part, batch, whole)
        if len(part.sequences) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return output

    trainer.learner.part_loss = limited
    torch.testing.assert_close(gradient(trainer, window), expected, rtol=1e-4, atol=1e-6)
    assert trainer.learner.micro_batch_size == 1


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    trainer = make_trainer()

    def broken(part, batch, whole):
        raise RuntimeError("shape mismatch")

    trainer.learner.part_loss = broken
    with pytest.raises(RuntimeError, match="shape mismatch"):
        update(trainer, groups((1.0, 0.0, 0.0, 0.5)))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_entropy_bonus_is_averaged_over_the_step(loss_type):
    window = groups((1.0, 0.0, 0.0, 0.5))
    whole = gradient(make_trainer(loss_type=loss_type, entropy_coef=0.5), window)
    split = make_trainer(
        loss_type=loss_type, entropy_coef=0.5, per_device_train_batch_size=1, gradient_accumulation_steps=4
    )
    assert (gradient(split, window) - whole).norm() < 1e-4 * whole.norm()


def test_tokens_of_low_entropy_can_be_left_out():
    window = groups((1.0, 0.0, 0.0, 0.5))
    trainer = make_trainer(top_entropy_quantile=0.2)
    weights = torch.cat([s.token_weights for s in window_of(trainer, window).steps[0].sequences])
    assert weights.sum() == 2 and len(weights) == 10
    assert (gradient(trainer, window) - gradient(make_trainer(), window)).abs().max() > 1e-3


def test_sampler_and_trainer_are_compared_and_made_up_for():
    """A sampler that was twice as sure of every token: ratios of 1/2."""
    window = groups((1.0, 0.0, 0.0, 0.5))
    trainer = make_trainer()
    sequences, _ = trainer.learner.know(training_sequences(window, (1.0,)), old=True)
    rows = iter([tuple((s.old_logps + math.log(2)).tolist()) for s in sequences])
    (group,) = window
    told = [dataclasses.replace(c, sampler_logps=next(rows)) for c in group.completions]
    window = [dataclasses.replace(group, completions=tuple(told))]
    metrics = update(make_trainer(), window)
    assert metrics["mismatch/ratio/max"] == pytest.approx(0.5, abs=1e-3)
    assert metrics["mismatch/logp_difference_mean"] == pytest.approx(math.log(2), abs=1e-3)
    plain = gradient(make_trainer(), window)
    corrected = gradient(make_trainer(importance_sampling_correction="token_truncate"), window)
    torch.testing.assert_close(corrected, plain / 2, rtol=1e-3, atol=1e-5)


def test_sequences_that_the_policy_moved_away_from_can_be_left_out():
    """Of negative advantage alone: with a threshold that everything passes, only the better half is left."""
    window = groups((1.0, 0.0, 0.0, 0.0))
    trainer = make_trainer(num_iterations=2, off_policy_mask_threshold=-1e9)
    parts = window_of(trainer, window)
    data, _ = trainer.learner.step(0, parts.steps[0], moved=False, again=False)
    batch = trainer.learner.collate(data.sequences)
    weights = trainer.learner.off_policy_weights(batch)
    assert (weights != 0).any(-1).tolist() == [True, False, False, False]


class Given:
    """A policy whose logits are a leaf: what the loss does to the log-probability of each token can be read off."""

    def __init__(self, sequences):
        self.policy = tiny_policy()
        torch.manual_seed(0)
        self.rows = {s.completion_ids: torch.randn(len(s.completion_ids), 50, requires_grad=True) for s in sequences}

    def logits(self, batch):
        width = batch.completion_ids.shape[1]
        rows = [
            self.rows[tuple(ids[:length].tolist())]
            for ids, length in zip(batch.completion_ids, batch.completion_mask.sum(-1), strict=True)
        ]
        return torch.stack([torch.nn.functional.pad(row, (0, 0, 0, width - len(row))) for row in rows])

    def coefficients(self, sequence) -> list[float]:
        """dloss / dlogp of each token: dlogp / dlogit of the target is 1 - p."""
        logits = self.rows[sequence.completion_ids]
        if logits.grad is None:
            return []
        targets = torch.tensor(sequence.completion_ids)[:, None]
        p = logits.detach().softmax(-1).gather(-1, targets)
        return (logits.grad.gather(-1, targets) / (1 - p))[:, 0].tolist()


TWO = [TrainSequence((4, 5), (6,), 1.0), TrainSequence((4, 5), (7, 8, 9), -1.0)]
COEFFICIENTS = {"dapo": [[-1 / 4], [1 / 4] * 3], "grpo": [[-1 / 2], [1 / 6] * 3]}


def coefficients(loss_type: str, size: int, sequences: list[TrainSequence]) -> list[list[float]]:
    """Of these sequences, of a step over both, in micro-batches of `size`."""
    given = Given(sequences)
    trainer = make_trainer(
        given.policy, loss_type=loss_type, loss_path="logits", report_kl=False, num_generations=2,
        per_device_train_batch_size=size, gradient_accumulation_steps=2 // size,
    )  # fmt: skip
    object.__setattr__(given.policy, "logits", given.logits)
    trainer.learner.accumulate(StepData(sequences, Totals.of(TWO), [], 0), moved=False, again=False)
    return [given.coefficients(sequence) for sequence in sequences]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("loss_type", COEFFICIENTS)
def test_what_a_token_counts_does_not_depend_on_its_micro_batch(loss_type, size):
    """Lengths 1 and 3, advantages +1 and -1, ratio 1."""
    for got, expected in zip(coefficients(loss_type, size, TWO), COEFFICIENTS[loss_type], strict=True):
        assert got == pytest.approx(expected, abs=1e-6)


def test_under_autocast_the_first_ratio_is_one():
    metrics = update(make_trainer(mixed_precision="bf16"), groups((1.0, 0.0, 0.0, 0.5)))
    assert metrics["ratio/min"] == metrics["ratio/max"] == 1.0
    assert 0 < metrics["grad_norm"] < math.inf


def test_adamw_can_keep_its_states_in_8_bits():
    trainer = make_trainer(optim="adamw_8bit")
    before = copy(trainer)
    update(trainer, groups((1.0, 0.0, 0.0, 0.5)))
    assert moved(before, trainer) > 1e-3
