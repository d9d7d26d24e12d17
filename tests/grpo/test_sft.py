"""The supervised loop: what it counts, and what it changes."""

import itertools

import pytest
import torch

from grpo.sft import (
    SFTConfig,
    SFTExample,
    collate,
    sft_loss,
    shuffled_batches,
    train_supervised,
)
from tests.grpo.conftest import EOS, PAD, tiny_model

# Different lengths, and the padding id as a real token in a prompt and in a completion.
EXAMPLES = [
    SFTExample([4, 13, 5, 15], [6, EOS]),
    SFTExample([7, PAD, 5, 8, 9, 15], [PAD, 9, 4, EOS]),
    SFTExample([8], [5]),
]


def parameters_of(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_collate_pads_prompts_left_and_completions_right():
    batch = collate(EXAMPLES, pad_token_id=PAD)
    assert batch.input_ids.tolist() == [
        [PAD, PAD, 4, 13, 5, 15, 6, EOS, PAD, PAD],
        [7, PAD, 5, 8, 9, 15, PAD, 9, 4, EOS],
        [PAD, PAD, PAD, PAD, PAD, 8, 5, PAD, PAD, PAD],
    ]
    assert batch.attention_mask.tolist() == [
        [0, 0, 1, 1, 1, 1, 1, 1, 0, 0],
        [1] * 10,
        [0, 0, 0, 0, 0, 1, 1, 0, 0, 0],
    ]
    assert batch.position_ids[0, :8].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    assert batch.completion_ids.tolist() == [[6, EOS, PAD, PAD], [PAD, 9, 4, EOS], [5, PAD, PAD, PAD]]
    assert batch.completion_mask.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_the_loss_is_the_mean_over_completion_tokens_whatever_the_padding(kind):
    model = tiny_model(kind)
    logps = []
    for example in EXAMPLES:
        ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
        predicted = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1).gather(1, ids[0, 1:, None])
        logps += predicted[len(example.prompt_ids) - 1 :, 0].tolist()
    assert len(logps) == 7
    loss = sft_loss(model, collate(EXAMPLES, pad_token_id=PAD))
    assert loss.item() == pytest.approx(-sum(logps) / 7, abs=1e-5)


def test_training_teaches_the_completions():
    model = tiny_model("llama")
    config = SFTConfig(max_steps=60, batch_size=3, learning_rate=1e-2, warmup_steps=3)
    losses = train_supervised(model, EXAMPLES, PAD, config)
    assert len(losses) == 60
    assert losses[-1] < 0.05 < 1.0 < losses[0]
    generated = model.generate(input_ids=torch.tensor([[4, 13, 5, 15]]), max_new_tokens=2, do_sample=False)
    assert generated[0, 4:].tolist() == [6, EOS]


def test_only_parameters_that_require_a_gradient_change():
    model = tiny_model("llama")
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    before = parameters_of(model)
    train_supervised(model, EXAMPLES, PAD, SFTConfig(max_steps=2, learning_rate=1e-2))
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {"lm_head.weight"}


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        train_supervised(tiny_model("llama").requires_grad_(False), EXAMPLES, PAD, SFTConfig(max_steps=1))


def test_the_seed_decides_the_run():
    def losses(seed: int) -> list[float]:
        config = SFTConfig(max_steps=4, batch_size=2, learning_rate=1e-3, seed=seed)
        return train_supervised(tiny_model("llama"), EXAMPLES, PAD, config)

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_gradients_are_clipped():
    """A gradient far below Adam's epsilon moves nothing; Adam hides any milder scale."""

    def largest_change(max_grad_norm: float) -> float:
        model = tiny_model("llama")
        before = parameters_of(model)
        config = SFTConfig(max_steps=1, learning_rate=1e-2, max_grad_norm=max_grad_norm)
        train_supervised(model, EXAMPLES, PAD, config)
        return max((p.detach() - before[name]).abs().max().item() for name, p in model.named_parameters())

    assert largest_change(1e-12) < 1e-4 < largest_change(1.0)


def test_the_callback_sees_every_step_and_can_stop():
    seen = []

    def stop_at_three(step: int, loss: float) -> bool:
        seen.append((step, loss))
        return step == 3

    losses = train_supervised(tiny_model("llama"), EXAMPLES, PAD, SFTConfig(max_steps=10), stop_at_three)
    assert seen == list(enumerate(losses, start=1))
    assert len(losses) == 3


@pytest.mark.parametrize("training", [True, False])
def test_the_model_trains_in_training_mode_and_is_left_in_its_own(training):
    model = tiny_model("llama").train(training)
    modes = []
    train_supervised(
        model, EXAMPLES, PAD, SFTConfig(max_steps=1), lambda step, loss: modes.append(model.training) or False
    )
    assert (modes, model.training) == ([True], training)


@pytest.mark.parametrize("batch_size", [2, 3, 7])
def test_an_epoch_has_every_example_once(batch_size):
    examples = [SFTExample([number], [number]) for number in range(5)]
    batches = list(itertools.islice(shuffled_batches(examples, batch_size, seed=0), 15))
    assert {len(batch) for batch in batches} == {batch_size}
    numbers = [example.prompt_ids[0] for batch in batches for example in batch]
    epochs = [numbers[start : start + 5] for start in range(0, len(numbers) - 4, 5)]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_no_examples_are_refused():
    with pytest.raises(ValueError, match="no examples"):
        train_supervised(tiny_model("llama"), [], PAD, SFTConfig(max_steps=1))


@pytest.mark.parametrize(
    ("kind", "rates"), [("cosine", (5e-3, 1e-2, 5.5e-3, 1e-3)), ("constant", (5e-3, 1e-2, 1e-2, 1e-2))]
)
def test_a_step_is_adamw_on_the_clipped_gradient_of_that_batch_alone(kind, rates):
    """Batches that hold every example, so that their order does not matter, against the same loop written out."""
    schedule = {"learning_rate": 1e-2, "lr_scheduler_type": kind, "warmup_steps": 1}
    config = SFTConfig(max_steps=4, batch_size=3, weight_decay=0.5, max_grad_norm=0.5, **schedule)
    trained, written_out = tiny_model("llama"), tiny_model("llama")
    train_supervised(trained, EXAMPLES, PAD, config)
    optimizer = torch.optim.AdamW(written_out.parameters(), weight_decay=0.5)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        sft_loss(written_out, collate(EXAMPLES, PAD)).backward()
        torch.nn.utils.clip_grad_norm_(written_out.parameters(), 0.5)
        optimizer.step()
    expected = parameters_of(written_out)
    for name, parameter in trained.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps must be greater than 0; got 0"),
        ({"batch_size": 0}, "batch_size must be greater than 0; got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be greater than 0; got nan"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be greater than 0; got -1.0"),
        ({"warmup_steps": -1}, "warmup_steps must be at least 0; got -1"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0; got -0.1"),
        ({"min_lr_rate": 2.0}, r"min_lr_rate must be in \[0, 1\]; got 2.0"),
        ({"lr_scheduler_type": "step"}, "lr_scheduler_type must be one of linear, cosine, constant; got 'step'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SFTConfig(**{"max_steps": 1, **options})


@pytest.mark.parametrize(("prompt", "completion"), [([], [1]), ([1], [])])
def test_an_example_needs_a_prompt_and_a_completion(prompt, completion):
    with pytest.raises(ValueError, match="at least one prompt token and one completion token"):
        SFTExample(prompt, completion)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_without_logits_the_loss_and_its_gradient_are_those_of_cross_entropy(kind):
    model, plain = tiny_model(kind), tiny_model(kind)
    loss = sft_loss(model, collate(EXAMPLES, PAD), from_hidden=True)
    loss.backward()
    expected = torch.zeros(())
    for example in EXAMPLES:
        ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
        logits = plain(input_ids=ids).logits[0, len(example.prompt_ids) - 1 : -1]
        labels = torch.tensor(example.completion_ids)
        expected = expected + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    expected = expected / 7
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_micro_batches_do_not_change_the_update():
    results = []
    for size in (None, 1, 2):
        model = tiny_model("llama")
        config = SFTConfig(max_steps=3, batch_size=3, micro_batch_size=size, learning_rate=1e-3)
        losses = train_supervised(model, EXAMPLES, PAD, config)
        results.append((losses, parameters_of(model)))
    for losses, parameters in results[1:]:
        assert losses == pytest.approx(results[0][0], abs=1e-5)
        for name, parameter in parameters.items():
            torch.testing.assert_close(parameter, results[0][1][name], rtol=0, atol=2e-5)
