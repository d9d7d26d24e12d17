"""What was sampled is what is kept, and it was sampled from the policy."""

import pytest
import torch
from transformers import GenerationConfig

from grpo.policy import make_policy
from grpo.rollout import completion_length, greedy, sample
from grpo.sampler import Sampling, support
from tests.grpo.conftest import CHARACTERS, EOS, character_tokenizer, task, tiny_model, tiny_policy


@pytest.mark.parametrize(
    ("ids", "eos", "length", "truncated"),
    [
        ([5, 6, 2, 2, 2], {2}, 3, False),
        ([5, 7, 9, 9], {2, 7}, 2, False),
        ([5, 2, 7, 9], {2, 7}, 2, False),
        ([5, 6, 8, 9], {2, 7}, 4, True),
        ([2, 2], {2}, 1, False),
        ([5, 0, 0], set(), 3, True),
    ],
)
def test_a_completion_ends_with_its_first_end_of_sequence_token(ids, eos, length, truncated):
    assert completion_length(ids, frozenset(eos)) == (length, truncated)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_greedy_takes_the_most_probable_token_whatever_the_batch(kind):
    policy = tiny_policy(kind)
    tasks = [task(prompt=p) for p in ("1+2=", "7", "12+34=", "a+b=")]
    for one, batched in zip(tasks, greedy(policy, tasks, 6, batch_size=3), strict=True):
        ids = list(one.prompt_ids)
        for _ in range(6):
            ids.append(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
            if ids[-1] == EOS:
                break
        assert list(batched.ids) == ids[len(one.prompt_ids) :]
        assert batched.truncated == (EOS not in batched.ids)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_samples_follow_the_policy_at_its_temperature(kind):
    """Against the exact distribution over all tokens: a top-k or a temperature that is left in would show."""
    policy, temperature, count = tiny_policy(kind), 1.5, 6000
    one, padding = task(prompt="1+2="), task(prompt="12+34=")
    torch.manual_seed(0)
    group, _ = sample(policy, [one, padding], [temperature] * count, 2, batch_size=2 * count)
    ids = torch.tensor([one.prompt_ids])
    with torch.no_grad():
        expected = (policy.model(input_ids=ids).logits[0, -1] / temperature).softmax(-1)
        first = torch.tensor([completion.ids[0] for completion in group])
        likely = int(expected.argmax())
        after = policy.model(input_ids=torch.tensor([[*one.prompt_ids, likely]])).logits[0, -1] / temperature
    second = torch.tensor([c.ids[1] for c in group if c.ids[0] == likely and len(c.ids) > 1])
    for drawn, probabilities in ((first, expected), (second, after.softmax(-1))):
        frequencies = torch.bincount(drawn, minlength=len(CHARACTERS)) / len(drawn)
        deviation = (probabilities * (1 - probabilities) / len(drawn)).sqrt()
        assert ((frequencies - probabilities).abs() <= 5 * deviation + 1e-3).all()
    rare = expected < expected.topk(50).values[-1]
    assert 0.5 < torch.isin(first, rare.nonzero()).float().mean() / expected[rare].sum() < 2


def test_samples_belong_to_their_tasks_in_order_however_they_are_batched():
    policy = tiny_policy()
    tasks = [task(id=str(n), prompt=f"{n}+1=") for n in range(5)]
    for batch_size in (1, 6, 100):
        groups = sample(policy, tasks, [1.0] * 3, 4, batch_size)
        assert [[c.task.id for c in group] for group in groups] == [[t.id] * 3 for t in tasks]


def test_the_seed_decides_the_samples():
    policy = tiny_policy()
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append([c.ids for c in sample(policy, [task()], [1.0] * 8, 4, 8)[0]])
    assert drawn[0] == drawn[1] != drawn[2]


def test_sampling_options_that_came_with_the_model_do_not_leak_in():
    policy = tiny_policy()
    plain = greedy(policy, [task()], 6, 1)[0].ids
    assert len(set(plain)) < len(plain), "a repetition penalty would change nothing here"
    policy.model.get_base_model().generation_config = GenerationConfig(repetition_penalty=9.0)
    assert greedy(policy, [task()], 6, 1)[0].ids == plain


def test_the_text_leaves_special_tokens_out():
    policy = tiny_policy()
    completion = greedy(policy, [task()], 6, 1)[0]
    words = [CHARACTERS[i] for i in completion.ids if i > 2]
    assert completion.text == "".join(words)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=7, top_p=0.9)])
def test_the_samplers_log_probabilities_are_those_it_drew_with(sampling):
    policy, temperatures = tiny_policy(), (0.7, 1.0, 1.6)
    tasks = [task("a", "1+2="), task("b", "12+34=")]
    torch.manual_seed(0)
    for group in sample(policy, tasks, temperatures, 5, 100, sampling):
        assert [c.temperature for c in group] == list(temperatures)
        for completion in group:
            ids = torch.tensor([completion.task.prompt_ids + completion.ids])
            with torch.no_grad():
                logits = policy.model(input_ids=ids).logits[0, len(completion.task.prompt_ids) - 1 : -1]
            scaled = logits / completion.temperature
            kept = support(scaled, sampling)
            logps = scaled.masked_fill(~kept, -torch.inf).log_softmax(-1)
            expected = logps.gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(completion.sampler_logps), expected, rtol=0, atol=1e-4)


def test_dropout_is_off_also_where_a_model_was_left_in_training_mode():
    policy = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, lora_dropout=0.5)
    torch.manual_seed(1)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tasks = [task("a", "1+2="), task("b", "12+34=")]
    drawn = []
    for training in (False, True, True):
        policy.model.train(training)
        torch.manual_seed(0)
        drawn.append([*greedy(policy, tasks, 6, 4), *sample(policy, tasks, [1.0] * 3, 6, 8)[0]])
        assert policy.model.training == training
    assert drawn[0] == drawn[1] == drawn[2]


def test_with_activation_checkpointing_a_decode_step_runs_one_token():
    policy = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, gradient_checkpointing=True)
    widths = []
    layer = policy.model.get_base_model().model.layers[0]
    layer.register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    policy.model.train()
    sample(policy, [task()], [1.0, 1.0], 5, 8)
    assert widths[0] == 3 and set(widths[1:]) == {1} and len(widths) >= 3
