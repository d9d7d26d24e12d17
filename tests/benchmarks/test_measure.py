"""Contenders are checked before they are timed; ratios are to ours; a fallen ratio is found."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import check, contenders, measure, report
from benchmarks.__main__ import main
from benchmarks.cases import Case, make_inputs, objective, reference_results
from benchmarks.contenders import Contender
from benchmarks.losses import sweep_cases

TINY = Case(tokens=64, width=16, vocabulary=101, beta=0.1)
CASES = [
    TINY,
    replace(TINY, dead=0.5, trains_head=True, level="sequence"),
    replace(TINY, start="logits", active=1.0),
    replace(TINY, start="logps", active=0.2),
]
OURS = ("ours, linear", "ours, head and logits", "ours, logits", "eager", "torch linear_cross_entropy")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_eager_and_torch_are_right_on_every_kind_of_case(case):
    results = measure.compare(case, "cpu", seconds=0.0, names=OURS)
    assert {r.contender: r.status for r in results if r.status != "right"} == {}
    assert all(
        r.seconds > 0 and r.rounds >= 3 and r.ratio_quartiles[0] <= r.ratio <= r.ratio_quartiles[1] for r in results
    )
    assert results[0].ratio == 1.0


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_the_reference_is_the_gradient_of_its_objective(case):
    x = make_inputs(case)
    leaves = [x.hidden.clone().requires_grad_(), x.weight.clone().requires_grad_()]
    logps = torch.log_softmax(leaves[0] @ leaves[1].T, -1).gather(-1, x.ids[..., None]).squeeze(-1)
    loss = objective(logps, x)
    expected = [loss, *torch.autograd.grad(loss, leaves)]
    for actual, other in zip(reference_results(x), expected, strict=False):
        torch.testing.assert_close(actual, other.detach(), rtol=1e-4, atol=1e-7)


def contender(name, run, **options):
    return Contender(name, "hidden", run, **options)


def test_a_wrong_contender_is_reported_and_not_timed(monkeypatch):
    def broken(x, hidden, weight):
        raise NotImplementedError("no such kernel\nmore")

    others = [
        contender("ours, linear", contenders.ours_linear),
        contender("forgets the KL", lambda x, h, w: contenders.eager(replace(x, ref_logps=None), h, w)),
        contender("breaks", broken),
        contender("is away", broken, package="no_such_package"),
        contender("needs a GPU", broken, devices=("cuda",)),
    ]
    monkeypatch.setattr(measure, "contenders_of", lambda case: others)
    right, wrong, failed, away, elsewhere = measure.compare(TINY, "cpu", seconds=0.0)
    assert right.status == "right"
    assert (wrong.status, wrong.seconds) == ("wrong", None)
    assert "relative errors" in wrong.reason
    assert (failed.status, failed.reason) == ("failed", "NotImplementedError: no such kernel")
    assert (away.status, away.reason) == ("missing", "no_such_package is not installed")
    assert elsewhere.reason == "runs on cuda only"


def test_a_gradient_that_is_not_a_number_is_wrong():
    assert not all(error <= 1.0 for error in measure.errors([torch.tensor([float("nan")])], [torch.ones(1)]))


def test_peak_memory_of_eager_holds_its_logits():
    """In a fresh process: at least logits and log-probabilities, at most a few times as much."""
    case = Case(tokens=256, width=16, vocabulary=16384)
    eager = next(c for c in contenders.contenders_of(case) if c.name == "eager")
    logits = case.tokens * case.vocabulary * 4
    assert 2 * logits <= measure.cpu_peak(eager, case) <= 6 * logits


def test_results_are_written_as_json_and_drawn(tmp_path, capsys):
    results = measure.compare(TINY, "cpu", seconds=0.0, names=OURS)
    report.print_results(results)
    assert "ours, linear" in capsys.readouterr().out
    report.write_json(tmp_path / "a.json", {"results": report.results_as_json(results)})
    assert json.loads((tmp_path / "a.json").read_text())["results"][0]["case"]["vocabulary"] == 101
    pytest.importorskip("matplotlib")
    report.plot_results(tmp_path / "a.png", results)
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_ratio_that_fell_by_more_than_15_percent_is_found():
    baseline = {"same": 2.0, "a little": 2.0, "fell": 2.0, "gone": 1.0}
    assert check.fallen(baseline, {"same": 2.0, "a little": 1.71, "fell": 1.69}) == ["fell", "gone"]


def test_the_check_compares_with_the_file_that_it_wrote(tmp_path, monkeypatch):
    path = tmp_path / "baseline.json"
    monkeypatch.setattr(check, "SECONDS", 0.0)
    assert check.run_check("cpu", update=False, path=path, cases=CASES[:1]) == 2
    assert check.run_check("cpu", update=True, path=path, cases=CASES[:1]) == 0
    path.write_text(json.dumps({"speedup_over_eager": {CASES[0].name: 1e6}}))
    assert check.run_check("cpu", update=False, path=path, cases=CASES[:1]) == 1


def test_the_sweep_covers_every_axis():
    cases = sweep_cases("cuda")
    assert {case.tokens for case in cases} == {1024, 4096, 8192, 16384, 65536}
    assert {case.start for case in cases} == {"hidden", "logits", "logps"}
    assert len(cases) == len(set(cases))


@pytest.mark.parametrize(("words", "suite"), [([], "quick"), (["--quick"], "quick"), (["--gpu"], "gpu")])
def test_quick_is_the_default_suite(words, suite, monkeypatch):
    started = []
    monkeypatch.setattr("benchmarks.__main__.run", lambda *arguments: started.append(arguments) or 0)
    assert main([*words, "--device", "cpu"]) == 0
    assert started[0][:2] == (suite, "cpu")


def test_a_gpu_that_is_not_there_is_said_in_one_line(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["--gpu"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
