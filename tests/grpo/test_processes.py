"""Two processes learn what one does: with adapters in both, and with the model spread over them (FSDP2)."""

import functools
import random
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from grpo import processes
from grpo.batch import TrainSequence, collate
from grpo.engines.server import ServerEngine
from grpo.groups import Completion
from grpo.rewards import Reward
from grpo.rollout import greedy, sample
from grpo.sampler import Sampling
from tests.grpo.conftest import EOS, PAD, task, tiny_policy
from tests.grpo.test_learner import COEFFICIENTS, TWO, coefficients, make_trainer
from tests.grpo_kernels.processes import outcomes

EVEN = Reward("even", 1, lambda completion_ids, **_: [sum(i % 2 == 0 for i in ids) / 4 for ids in completion_ids])
TASKS = [task(str(n), prompt=f"{n}+1" + "=" * (1 + n % 2), rules=("even@1",)) for n in range(9)]
STEPS = 5
SETTINGS = {"max_steps": STEPS, "learning_rate": 2e-3}
OPTIONS = {
    "dapo": {"loss_type": "dapo"},
    "grpo with a reference": {"loss_type": "grpo", "beta": 0.1},
    "bnpo, windows of two": {"loss_type": "bnpo", "steps_per_generation": 2, "num_iterations": 2},
    "luspo, entropy": {"loss_type": "luspo", "entropy_coef": 0.1},
}


class Told:
    """Completions that depend on the question alone, so that it does not matter which process is asked."""

    def generate(self, policy, tasks, temperatures, *_):
        return [[self.completion(one, n) for n in range(len(temperatures))] for one in tasks]

    def completion(self, one, n):
        draw = random.Random(f"{one.id}:{n}")
        ids = (*(draw.randrange(3, 40) for _ in range(draw.randrange(4))), EOS)
        return Completion(one, ids, "", truncated=False)


def trained(sharded: bool, **options):
    policy = tiny_policy("llama")
    if sharded:
        processes.shard(policy.model)
    # The steps of one process have as many completions as those of all.
    options = SETTINGS | {"per_device_train_batch_size": 8 // processes.count()} | options
    trainer = make_trainer(policy, rewards=[EVEN], tasks=TASKS, engine=Told(), **options)
    rows = [trainer.step().metrics for _ in range(STEPS)]
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in policy.parameters()]
    return trainer, rows, torch.cat([p.detach().flatten() for p in parameters])


def same_as_one(folder: str, sharded: bool) -> None:
    for name, options in OPTIONS.items():
        trainer, rows, parameters = trained(sharded, **options)
        if sharded:
            inner = [p for p in trainer.policy.model.parameters() if p.dim() == 2]
            assert all(p.to_local().numel() < p.numel() for p in inner), "nothing is sharded"
        expected = torch.load(Path(folder, f"{name}.pt"))
        assert (parameters - expected["parameters"]).abs().max() < 1e-5, name
        for row, one in zip(rows, expected["rows"], strict=True):
            for key in ("reward", "kl", "entropy", "grad_norm", "clip_ratio/region_mean", "completions/mean_length"):
                if key in one:
                    assert row[key] == pytest.approx(one[key], rel=1e-3, abs=1e-5), (name, key)


def resumes(folder: str, sharded: bool) -> None:
    """Three steps, a checkpoint, and the rest in a new trainer: the parameters of the run that went on."""
    options = OPTIONS["bnpo, windows of two"]
    _, _, whole = trained(sharded, **options)
    policy = tiny_policy("llama")
    if sharded:
        processes.shard(policy.model)
    first = [tiny_policy("llama"), policy]
    run_dir = Path(folder, f"run-{sharded}")
    if processes.rank() == 0:
        run_dir.mkdir()
    dist.barrier()
    for n, one in enumerate(first):
        if sharded and n == 0:
            processes.shard(one.model)
        part = make_trainer(
            one, rewards=[EVEN], tasks=TASKS, engine=Told(), run_dir=run_dir, per_device_train_batch_size=4,
            **SETTINGS | options,
        )  # fmt: skip
        if n == 0:
            for _ in range(3):
                part.step()
            path = part.save_checkpoint()
        else:
            part.load_checkpoint(path)
            for _ in range(STEPS - 3):
                part.step()
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in policy.parameters()]
    assert torch.equal(torch.cat([p.detach().flatten() for p in parameters]), whole)
    saved = load_file(str(path / "adapter_model.safetensors"))
    assert all(tensor.abs().sum() > 0 for tensor in saved.values()) and len(saved) == len(parameters)


def generates_when_sharded() -> None:
    """Every rank takes part in every forward pass, also in those of completions that ended earlier elsewhere."""
    policy = tiny_policy("llama")
    processes.shard(policy.model)
    torch.manual_seed(processes.rank())
    trainer = make_trainer(policy, rewards=[EVEN], tasks=TASKS, per_device_train_batch_size=4, merge_lora=False)
    groups = trainer.step().groups
    assert len(groups) == 2
    assert len(processes.gather(groups)) == 4

    # Where one process has more to answer than the other, they still pass through the layers together.
    asked = TASKS[: 3 if processes.rank() == 0 else 1]
    assert [c.task.id for c in greedy(policy, asked, 3, batch_size=1)] == [one.id for one in asked]
    assert sample(policy, TASKS[: processes.rank()], [1.0] * 2, 3, batch_size=2)[1:] == []


def moves_its_reference_when_sharded() -> None:
    batch = collate([TrainSequence(TASKS[0].prompt_ids, (5, 6), 1.0)], PAD)
    logits = []
    for sharded in (False, True):
        policy = tiny_policy("llama")
        if sharded:
            processes.shard(policy.model)
        policy.sync_reference(0.5)
        with policy.as_reference():
            logits.append(policy.logits(batch))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def serves_its_own_adapter(sharded: bool) -> None:
    """Every process gives the server a whole adapter of its own name."""
    policy = tiny_policy("llama")
    whole = {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    if sharded:
        processes.shard(policy.model)
    loaded = {}

    def post(path, content):
        if path == "/v1/load_lora_adapter":
            loaded[content["lora_name"]] = load_file(Path(content["lora_path"], "adapter_model.safetensors"))
        return {"choices": [{"token_ids": [5, EOS]}]}

    engine = ServerEngine("http://localhost")
    engine.post = post
    groups = engine.generate(policy, TASKS[:2], (1.0,), Sampling(), 2, 8)
    assert [group[0].ids for group in groups] == [(5, EOS)] * 2
    ((name, weights),) = loaded.items()
    assert len(set(processes.gather([name]))) == 2
    assert len(weights) == len(whole)
    for n, tensor in whole.items():
        assert torch.equal(weights[n.replace(".default", "")], tensor), n


def coefficients_of_both() -> None:
    """Each process has one of the two sequences: its tokens count what they do in a batch of two."""
    own = [TWO[processes.rank()]]
    for loss_type, expected in COEFFICIENTS.items():
        assert coefficients(loss_type, 1, own) == [pytest.approx(expected[processes.rank()], abs=1e-6)]


def shares_and_gathers() -> None:
    items = list(range(5))
    own = processes.share(items)
    assert list(own) == ([0, 1, 2] if processes.rank() == 0 else [3, 4])
    assert processes.gather(own) == items
    assert processes.largest(processes.rank()) == 1


@functools.cache
def results() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        for name, options in OPTIONS.items():
            _, rows, parameters = trained(False, **options)
            torch.save({"rows": rows, "parameters": parameters}, Path(folder, f"{name}.pt"))
        cases = {
            "adapters in both": functools.partial(same_as_one, folder, False),
            "sharded": functools.partial(same_as_one, folder, True),
            "resumed": functools.partial(resumes, folder, False),
            "resumed, sharded": functools.partial(resumes, folder, True),
            "sampling, sharded": generates_when_sharded,
            "a reference that moves, sharded": moves_its_reference_when_sharded,
            "a server": functools.partial(serves_its_own_adapter, False),
            "a server, sharded": functools.partial(serves_its_own_adapter, True),
            "coefficients": coefficients_of_both,
            "shares": shares_and_gathers,
        }
        return dict.fromkeys(cases, "") | outcomes(2, cases)


@pytest.mark.parametrize(
    "case",
    [
        "adapters in both",
        "sharded",
        "resumed",
        "resumed, sharded",
        "sampling, sharded",
        "a reference that moves, sharded",
        "a server",
        "a server, sharded",
        "coefficients",
        "shares",
    ],
)
def test_two_processes(case):
    assert not results()[case], results()[case]
