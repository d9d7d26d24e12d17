"""The loss from hidden states, from logits and by plain autograd: one update, and what a refused head means."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.batch import TrainSequence, collate
from grpo.config import DEMO, TrainConfig
from grpo.data.prompts import build_tasks
from grpo.errors import InputError
from grpo.loss_path import batch_logps, choose_loss_path
from grpo.policy import load_policy, load_tokenizer, make_policy, model_path
from grpo.rewards import find_rewards
from grpo.run import load_problems, resolve_loss_path
from grpo.trainer import GRPOTrainer
from tests.grpo.conftest import CHARACTERS, EOS, PAD, character_tokenizer, tiny_model, tiny_policy
from tests.grpo.test_console import display
from tests.grpo.test_learner import gradient, groups, make_trainer, update

PATHS = ("linear", "logits", "eager")
KINDS = ["llama", "qwen2", "gpt2"]


def demo_trainer(path: str, steps: int) -> GRPOTrainer:
    """The embedded default with 64 completions a step."""
    config = TrainConfig(**DEMO | {"per_device_train_batch_size": 64, "max_steps": steps, "loss_path": path})
    _, tokenizer = load_tokenizer(model_path(config))
    rewards = find_rewards(config.reward)
    rules = tuple(reward.rule for reward in rewards)
    tasks = build_tasks(load_problems(config).train, tokenizer, rules, config.max_completion_length, None)
    return GRPOTrainer(config, load_policy(model_path(config), config, tokenizer), tasks, rewards)


def refused_policy():
    """Its head carries an adapter."""
    return make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, ("q_proj", "lm_head"))


def unknown_policy():
    """Its logits are scaled in a way that its configuration does not tell."""
    policy = tiny_policy("llama")
    base = policy.model.get_base_model()
    forward = base.forward

    @functools.wraps(forward)
    def scaled(*arguments, **options):
        output = forward(*arguments, **options)
        output.logits = output.logits * 2
        return output

    base.forward = scaled
    return policy


def test_every_path_learns_the_same_on_the_embedded_default():
    """30 steps from the same seed, sampling included."""
    trained, rewards = {}, {}
    for path in PATHS:
        trainer = demo_trainer(path, 30)
        torch.manual_seed(0)
        rewards[path] = [trainer.step().metrics["reward"] for _ in range(30)]
        trained[path] = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
    assert trained["linear"].abs().max() > 0.1
    assert sum(rewards["linear"]) > 0
    for path in PATHS[1:]:
        assert (trained[path] - trained["linear"]).abs().max() < 1e-4
        assert rewards[path] == rewards["linear"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"beta": 0.5}, {"loss_type": "vespo"}, {"temperature": 0.7, "num_iterations": 2}]
)
def test_gradients_and_metrics_are_the_same(kind, options):
    """Of groups with and without a difference in reward, and completions of different lengths."""
    window = groups((1.0, 0.0, 0.0, 0.5), (1.0, 1.0, 1.0, 1.0), (0.0, 1.0, None, 0.0))
    trainers = {path: make_trainer(policy=tiny_policy(kind), loss_path=path, **options) for path in PATHS}
    metrics = {path: update(trainer, window) for path, trainer in trainers.items()}
    assert "entropy" in metrics["linear"] and "kl" in metrics["linear"]
    grads = {
        path: gradient(
            make_trainer(policy=tiny_policy(kind), loss_path=path, **options | {"num_iterations": 1}), window
        )
        for path in PATHS
    }
    assert grads["linear"].abs().max() > 1e-3
    for path in PATHS[1:]:
        torch.testing.assert_close(grads[path], grads["linear"], rtol=0, atol=1e-4 * grads["linear"].abs().max().item())
        assert metrics[path] == pytest.approx(metrics["linear"], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_pass_is_exactly_on_policy(kind, path):
    """The ratio is exactly 1 against log-probabilities of an earlier pass, and the KL of new adapters exactly 0."""
    policy = tiny_policy(kind, trained=False)
    trainer = make_trainer(policy=policy, loss_path=path, report_kl=True)
    window = groups((1.0, 0.0, 0.0, 0.5))
    assert update(trainer, window)["kl"] == 0.0
    trained = make_trainer(policy=tiny_policy(kind), loss_path=path, epsilon=0.0, learning_rate=1e-30, num_iterations=2)
    assert update(trained, window)["clip_ratio/region_mean"] == 0.0


def test_log_probabilities_of_every_path_agree():
    policy = tiny_policy()
    batch = collate([TrainSequence((3, 8, 4), (6, 7, EOS), 1.0), TrainSequence((5,), (9,), -1.0)], PAD)
    linear, logits, eager = (batch_logps(policy, batch, path, 0.7)[0] * batch.completion_mask for path in PATHS)
    torch.testing.assert_close(linear, eager, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits, eager, rtol=0, atol=1e-5)


class LargestLogits(TorchDispatchMode):
    """The number of rows in the largest tensor whose last dimension is the vocabulary, the head's weight aside."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight.data_ptr()
        self.rows = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        output = function(*arguments, **options or {})
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or tensor.data_ptr() == self.weight:
                continue
            if tensor.shape[-1] == len(CHARACTERS):
                self.rows = max(self.rows, tensor.numel() // tensor.shape[-1])
        return output


def test_the_linear_path_holds_no_logits_of_padding():
    """Of 4 completions with 1 to 4 tokens, 10 rows of logits are computed at a time; the other paths compute 16."""
    rows = {}
    for path in PATHS:
        trainer = make_trainer(loss_path=path)
        with LargestLogits(trainer.policy.head().weight) as largest:
            update(trainer, groups((1.0, 0.0, 0.0, 0.5)))
        rows[path] = largest.rows
    assert rows == {"linear": 10, "logits": 16, "eager": 16}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_logits_of_the_wanted_length_are_not_sliced(kind, shared):
    """With shared prompts, and where the model can leave the others out."""
    policy = tiny_policy(kind)
    sequences = [TrainSequence((3, 8, 4), (6, 7, EOS), 1.0)] * (2 if shared else 1)
    assert "Slice" not in policy.logits(collate(sequences, PAD)).grad_fn.name()


def test_automatic_is_linear():
    assert choose_loss_path("auto", tiny_policy()) == ("linear", None)
    assert TrainConfig().loss_path == "auto"
    assert make_trainer().learner.loss_path == "linear"
    for path in PATHS[1:]:
        assert choose_loss_path(path, refused_policy()) == (path, None)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (refused_policy, "lm_head carries a PEFT adapter"),
        (unknown_policy, "the logits of LlamaForCausalLM are not those of its hidden states and its head alone"),
    ],
)
def test_a_head_that_is_refused_falls_back_to_logits_in_one_line(make, reason):
    policy = make()
    shown, stream = display(terminal=False)
    assert resolve_loss_path(TrainConfig(), policy, shown) == "logits"
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("--loss-path logits, which needs more memory: ") and reason in line
    trainer = make_trainer(policy=policy)
    assert trainer.learner.loss_path == "logits"
    assert update(trainer, groups((1.0, 0.0, 0.0, 0.5)))["grad_norm"] > 0

    with pytest.raises(InputError, match=f"--loss-path linear: .*{reason}.*; give --loss-path logits"):
        make_trainer(policy=policy, loss_path="linear")


def test_nothing_is_printed_where_the_head_allows_it():
    shown, stream = display(terminal=False)
    assert resolve_loss_path(TrainConfig(), tiny_policy(), shown) == "linear"
    assert resolve_loss_path(TrainConfig(loss_path="eager"), refused_policy(), shown) == "eager"
    assert stream.getvalue() == ""
