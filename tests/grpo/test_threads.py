"""Torch gets the machine's cores and no more."""

import os

import pytest
import torch

from grpo.threads import available_cores, set_threads, wait_politely


@pytest.fixture(autouse=True)
def restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("", 8)])
def test_the_container_quota_counts(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(quota)
    assert available_cores(tmp_path / "cpu.max") == cores


def test_a_machine_without_cgroups_has_its_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert available_cores(tmp_path / "nothing") == 3


@pytest.mark.parametrize(("wanted", "threads"), [("", 4), ("2", 2), ("9", 4), ("0", 4), ("many", 4)])
def test_omp_num_threads_is_respected_up_to_the_cores(monkeypatch, wanted, threads):
    monkeypatch.setattr("grpo.threads.available_cores", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert set_threads() == threads == torch.get_num_threads()


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch, before, after):
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", before)
    wait_politely()
    assert os.environ["OMP_WAIT_POLICY"] == after
