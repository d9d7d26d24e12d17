"""Every engine samples from the policy, says with what log-probabilities, and leaves the adapters as they were."""

import dataclasses
import http.server
import json
import math
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo.config import TrainConfig
from grpo.engines import make_engine
from grpo.engines.continuous import ContinuousEngine
from grpo.engines.server import ServerEngine
from grpo.engines.transformers import TransformersEngine
from grpo.errors import InputError
from grpo.rollout import greedy, sample
from grpo.sampler import Sampling, support
from tests.grpo.conftest import EOS, task, tiny_policy

TASKS = [task("a", "1+2="), task("b", "12+34="), task("c", "7")]
TEMPERATURES = (1.0, 0.5, 1.0)
EVERYTHING = Sampling()


def logps_of(policy, completion, sampling=EVERYTHING) -> torch.Tensor:
    """[T], on the sampler's support, without any cache or padding."""
    ids = torch.tensor([completion.task.prompt_ids + completion.ids])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, len(completion.task.prompt_ids) - 1 : -1]
    scaled = logits / completion.temperature
    scaled = scaled.masked_fill(~support(scaled, sampling), -math.inf)
    return scaled.log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]


class Handler(http.server.BaseHTTPRequestHandler):
    """What vLLM answers, from a policy of this process."""

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.answer(content)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    def answer(self, content: dict) -> tuple[int, str]:
        server = self.server
        if self.path == "/v1/load_lora_adapter":
            if server.refuses:
                return 404, '{"detail": "Not Found"}'
            server.adapters[content["lora_name"]] = load_file(Path(content["lora_path"]) / "adapter_model.safetensors")
            return 200, "Success: LoRA adapter added"
        if self.path == "/v1/unload_lora_adapter":
            server.unloaded.append(content["lora_name"])
            return 200, "Success: LoRA adapter removed"
        if server.is_broken:
            return 500, "Internal Server Error"
        assert content["model"] in server.adapters and content["model"] not in server.unloaded
        # What is left out, vLLM takes from the checkpoint's own generation_config.json.
        assert {"temperature", "top_p", "top_k", "min_p"} <= content.keys()
        assert content["repetition_penalty"] == 1.0
        assert content["presence_penalty"] == content["frequency_penalty"] == 0.0
        with server.lock:
            torch.manual_seed(content.get("seed", 0))
            one = dataclasses.replace(task("x"), prompt_ids=tuple(content["prompt"]))
            ids, temperature = torch.tensor([content["prompt"]]), content["temperature"]
            with torch.no_grad():
                logits = server.policy.model(input_ids=ids).logits[0, -1]
            sampling = Sampling(1.0, content["top_p"], max(content["top_k"], 0))
            drawn = sample(server.policy, [one], [temperature], content["max_tokens"], 1, sampling)[0][0]
        top = (logits if server.is_raw else logits / temperature).log_softmax(-1).max().item()
        logprobs = {"token_logprobs": list(drawn.sampler_logps), "top_logprobs": [{"token": top}]}
        choice = {"index": 0, "text": drawn.text, "logprobs": logprobs}
        if not server.is_old:
            choice["token_ids"] = list(drawn.ids)
        return 200, json.dumps({"choices": [choice]})

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    policy = tiny_policy("llama")
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.policy, running.adapters, running.lock = policy, {}, threading.Lock()
    running.refuses = running.is_old = running.is_raw = running.is_broken = False
    running.unloaded = []
    running.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture(params=["transformers", "continuous", "server"])
def engine(request):
    if request.param == "server":
        return ServerEngine(request.getfixturevalue("server").url)
    return {"transformers": TransformersEngine, "continuous": ContinuousEngine}[request.param]()


def test_completions_are_those_of_their_tasks_and_temperatures(engine):
    policy = tiny_policy("llama")
    torch.manual_seed(0)
    groups = engine.generate(policy, TASKS, TEMPERATURES, Sampling(), 4, 100)
    assert [[c.task.id for c in group] for group in groups] == [[t.id] * 3 for t in TASKS]
    for group in groups:
        assert [c.temperature for c in group] == list(TEMPERATURES)
        for completion in group:
            expected = logps_of(policy, completion)
            torch.testing.assert_close(torch.tensor(completion.sampler_logps), expected, rtol=0, atol=1e-4)
            assert completion.truncated == (EOS not in completion.ids)


def test_the_one_token_of_top_k_1_is_the_greedy_one(engine):
    policy = tiny_policy("llama")
    groups = engine.generate(policy, TASKS, (1.0, 0.5), Sampling(top_k=1), 4, 100)
    for group, expected in zip(groups, greedy(policy, TASKS, 4, 100), strict=True):
        assert {c.ids for c in group} == {expected.ids}
        assert all(logp == pytest.approx(0.0, abs=1e-6) for c in group for logp in c.sampler_logps)


def test_the_seed_decides(engine):
    policy = tiny_policy("llama")
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        groups = engine.generate(policy, TASKS, (1.0, 1.0), Sampling(), 4, 100)
        drawn.append([c.ids for group in groups for c in group])
    assert drawn[0] == drawn[1] != drawn[2]


def test_adapters_stay_as_they_are(engine):
    """float32, the same bits, and small updates reach them: 100 steps of 1e-6 change .01 to .0099."""
    policy = tiny_policy("llama")
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    engine.generate(policy, TASKS, (1.0, 1.0), Sampling(), 3, 100)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.dtype == torch.float32
    assert not policy.model.training
    parameters = policy.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.0)
    for parameter in parameters:
        parameter.data.fill_(0.01)
    for _ in range(100):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    for parameter in parameters:
        torch.testing.assert_close(parameter.data, torch.full_like(parameter, 0.0099), rtol=0, atol=1e-7)


def test_continuous_batching_restricts_its_support():
    policy, sampling = tiny_policy("llama"), Sampling(top_k=9, top_p=0.8)
    for group in ContinuousEngine().generate(policy, TASKS, (1.0, 0.7), sampling, 4, 100):
        for completion in group:
            logps = logps_of(policy, completion, sampling)
            torch.testing.assert_close(torch.tensor(completion.sampler_logps), logps, rtol=0, atol=1e-4)
    with pytest.raises(InputError, match="--engine continuous has no min_p"):
        ContinuousEngine().generate(policy, TASKS, (1.0,), Sampling(min_p=0.1), 4, 100)


def test_the_server_gets_the_adapter_of_every_rollout(server):
    policy = tiny_policy("llama")
    engine = ServerEngine(f"{server.url}/v1/")
    engine.generate(policy, TASKS[:1], (1.0,), Sampling(), 2, 1)
    for parameter in policy.parameters():
        parameter.data.add_(1.0)
    engine.generate(policy, TASKS[:1], (1.0,), Sampling(), 2, 1)
    first, second = server.adapters.values()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor + 1.0)
    assert server.unloaded == list(server.adapters)


def test_the_server_is_left_without_adapters_after_an_error_too(server):
    server.is_broken = True
    with pytest.raises(InputError, match="/v1/completions answered 500"):
        ServerEngine(server.url).generate(tiny_policy("llama"), TASKS, (1.0,), Sampling(), 2, 1)
    assert len(server.adapters) == 1 and server.unloaded == list(server.adapters)


@pytest.mark.parametrize(("temperature", "sampling"), [(0.5, Sampling()), (1.0, Sampling(top_k=3))])
def test_log_probabilities_from_before_the_temperature_are_refused(server, temperature, sampling):
    server.is_raw = True
    policy, engine = tiny_policy("llama"), ServerEngine(server.url)
    engine.generate(policy, TASKS[:1], (1.0,), Sampling(), 2, 1)
    with pytest.raises(InputError, match="not those it samples with; start it with --logprobs-mode processed_logprobs"):
        engine.generate(policy, TASKS[:1], (temperature,), sampling, 2, 1)


def test_a_support_that_the_server_finds_otherwise_is_refused():
    with pytest.raises(InputError, match="cannot combine min_p with top_p"):
        ServerEngine("http://h").generate(tiny_policy("llama"), TASKS, (1.0,), Sampling(top_p=0.9, min_p=0.1), 2, 1)


def test_a_server_that_is_not_there_or_not_fit_is_named(server):
    policy = tiny_policy("llama")
    server.is_old = True
    with pytest.raises(InputError, match="sends no token_ids"):
        ServerEngine(server.url).generate(policy, TASKS[:1], (1.0,), Sampling(), 2, 1)
    server.refuses = True
    with pytest.raises(InputError, match="load_lora_adapter answered 404.*--enable-lora"):
        ServerEngine(server.url).generate(policy, TASKS[:1], (1.0,), Sampling(), 2, 1)
    with pytest.raises(InputError, match="--server-url http://127.0.0.1:9: there is no server that answers"):
        ServerEngine("http://127.0.0.1:9").generate(policy, TASKS[:1], (1.0,), Sampling(), 2, 1)


def test_the_configuration_names_the_engine():
    made = [make_engine(TrainConfig(engine=name, server_url="http://h")) for name in ("continuous", "server")]
    assert [type(engine) for engine in made] == [ContinuousEngine, ServerEngine]
    with pytest.raises(InputError, match="--engine server needs --server-url"):
        TrainConfig(engine="server")
