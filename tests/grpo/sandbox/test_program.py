"""A program, its input and what it printed; and a machine without bubblewrap."""

import logging

import pytest

from grpo.errors import InputError
from grpo.sandbox import Limits, bubblewrap, process, run_python


def test_output_errors_and_exit_code():
    outcome = run_python("import sys; print(input()[::-1]); print('e', file=sys.stderr); sys.exit(3)", "héllo\n")
    assert (outcome.status, outcome.stdout, outcome.stderr, outcome.exit_code) == ("failed", "olléh\n", "e\n", 3)


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        ("print(1)", "ok", 0),
        ("", "ok", 0),
        ("import sys; sys.exit(0)", "ok", 0),
        ("1 / 0", "failed", 1),
        ("not python", "failed", 1),
        ("x = '\0'", "failed", 1),
        ("import os; os.abort()", "failed", 134),
        ("assert __name__ == '__main__'", "ok", 0),
        ("import collections, dataclasses, decimal, fractions, itertools, math, random, re, typing", "ok", 0),
        ("import threading\nt = threading.Thread(target=print)\nt.start(); t.join()", "ok", 0),
        ("import asyncio\nasyncio.run(asyncio.sleep(0))", "ok", 0),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''], check=True)", "ok", 0),
        ("import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')", "ok", 0),
        ("import numpy", "failed", 1),
    ],
)
def test_status(code, status, exit_code):
    outcome = run_python(code)
    assert (outcome.status, outcome.exit_code) == (status, exit_code), outcome.stderr


def test_halves_of_surrogate_pairs_do_not_stop_anything():
    assert run_python("print(ascii(input()), '\ud800')", "\ud800").stdout == "'?' ?\n"


@pytest.fixture
def anew():
    """What is known of bubblewrap is found out again, before and after."""
    for found in (bubblewrap.bwrap, bubblewrap.require_working):
        found.cache_clear()
    yield
    for found in (bubblewrap.bwrap, bubblewrap.require_working):
        found.cache_clear()


def test_without_bubblewrap_it_is_refused_in_one_line(monkeypatch, anew):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"apt-get install bubblewrap.*--reward code:unsafe_sandbox=true") as error:
        run_python("print(1)")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo bubblewrap 0.6.1", "0.6.1; 0.7 or newer is needed: install it"),
        ("[ $1 = --version ] && echo bubblewrap 0.9.0 && exit\necho bwrap: not permitted >&2\nexit 1", "not permitted"),
    ],
    ids=["old", "not allowed"],
)
def test_a_bubblewrap_that_cannot_be_used_is_refused_in_one_line(script, message, tmp_path, monkeypatch, anew):
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InputError, match=message) as error:
        run_python("print(1)")
    assert "--reward code:unsafe_sandbox=true" in str(error.value) and "\n" not in str(error.value)


def test_the_unsafe_sandbox_has_limits_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    monkeypatch.setenv("PASSWORD", "swordfish")
    process.warn_unsafe.cache_clear()
    with caplog.at_level(logging.WARNING):
        said = run_python("import os; print(os.getcwd(), os.environ)", unsafe=True)
        assert run_python("x = bytearray(1 << 30)", unsafe=True).status == "failed"
        assert run_python("while True: pass", limits=Limits(wall_s=0.5), unsafe=True).status == "timeout"
    assert "grpo-sandbox-" in said.stdout and "swordfish" not in said.stdout
    assert [record.message for record in caplog.records] == [
        "--reward code:unsafe_sandbox=true: code of completions runs with limits alone; it reaches files and network"
    ]


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"memory_bytes is 0; it must be above 0"):
        Limits(memory_bytes=0)


def test_a_sandbox_that_does_not_start_is_no_verdict(monkeypatch):
    bubblewrap.require_working()
    monkeypatch.setattr(bubblewrap, "interpreter", lambda: "/no/such/python")
    with pytest.raises(process.SandboxError, match="did not start.*No such file"):
        run_python("print(1)")
