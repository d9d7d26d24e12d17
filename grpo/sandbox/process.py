"""Starting, reading and ending a sandboxed process."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import logging
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo.errors import InputError
from grpo.sandbox import bubblewrap
from grpo.sandbox.seccomp import seccomp_filter

HARNESS = Path(__file__).parent / "inside"
PYTHON_OPTIONS = ("-I", "-S", "-B", "-X", "utf8")

log = logging.getLogger(__name__)


class SandboxError(RuntimeError):
    """The sandbox itself could not do its work: nothing is known of the program that it was given."""


@dataclass(frozen=True)
class Limits:
    """What a sandboxed program may use. Times in seconds, sizes in bytes.

    `memory_bytes` is the address space of each process, and `processes` counts threads too: all of a sandbox may
    reach their product. `output_bytes` is what it may print, errors included.
    """

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 << 20
    file_bytes: int = 16 << 20
    tmp_bytes: int = 32 << 20
    processes: int = 8
    open_files: int = 64
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise InputError(f"{name} is {value!r}; it must be above 0")


@dataclass(frozen=True)
class Finished:
    """What came of a process. `status` is finished, timeout or output_limit; a signal's exit code is 128 + signal."""

    status: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float


class SandboxedProcess:
    """A process that runs /inside/launch.py on `job`. It is ended, with all that it started, by `end` or by `with`.

    stdin is `stdin` as a read-only file. `pass_fds` are open in it under the same numbers.
    """

    def __init__(
        self, job: dict[str, Any], limits: Limits, *, unsafe: bool, stdin: bytes = b"", pass_fds: Sequence[int] = ()
    ) -> None:
        require_linux()
        self.limits = limits
        self.reached_program = False
        self._started = time.monotonic()
        self._folder = tempfile.mkdtemp(prefix="grpo-sandbox-") if unsafe else None
        job = job | {"limits": _rlimits(limits), "user": _user(unsafe)}
        self._job_fd: int | None = _read_only_file(json.dumps(job).encode())
        stdin_fd, filter_fd = _read_only_file(stdin), _read_only_file(seccomp_filter())
        try:
            if self._folder:
                warn_unsafe()
                prefix, harness = [], str(HARNESS)
                environment = bubblewrap.ENVIRONMENT | {"HOME": self._folder, "TMPDIR": self._folder}
            else:
                bubblewrap.require_working()
                prefix = [*bubblewrap.command(limits.tmp_bytes, HARNESS), "--seccomp", str(filter_fd)]
                harness, environment = bubblewrap.HARNESS, {}
            self._process = subprocess.Popen(
                [*prefix, bubblewrap.interpreter(), *PYTHON_OPTIONS, f"{harness}/launch.py", str(self._job_fd)],
                stdin=stdin_fd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=self._folder or "/",
                pass_fds=[self._job_fd, *([] if unsafe else [filter_fd]), *pass_fds],
                start_new_session=True,
            )
        except BaseException:
            self._forget()
            raise
        finally:
            os.close(stdin_fd)
            os.close(filter_fd)

    def __enter__(self) -> SandboxedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def finish(self) -> Finished:
        """Wait until it ends or reaches a limit, and end all that it started.

        Raises SandboxError where its program was never reached.
        """
        try:
            status, stdout, stderr = self._read()
        finally:
            self.end()
        seconds = time.monotonic() - self._started
        if not self.reached_program:
            said = stderr.decode(errors="replace").strip().splitlines()
            raise SandboxError(f"the sandbox did not start ({status}): {said[-1] if said else 'no message'}")
        code = self._process.returncode
        code = 128 - code if code < 0 else code  # bubblewrap itself says 128 + n for signal n
        if status == "finished" and code == 128 + signal.SIGXCPU:
            status = "timeout"
        return Finished(status, code if status == "finished" else None, stdout, stderr, seconds)

    def end(self) -> None:
        # In a sandbox, the kernel ends the whole pid namespace with bubblewrap. Without one, what the process left
        # behind in its group is still there when it has ended by itself.
        if self._process.returncode is None or self._folder:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()
        self._forget()

    def _forget(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._job_fd is not None:
            # The harness reads its job to the end before it runs anything, through the same open file.
            self.reached_program = os.lseek(self._job_fd, 0, os.SEEK_CUR) > 0
            os.close(self._job_fd)
            self._job_fd = None

    def _read(self) -> tuple[str, bytes, bytes]:
        """The status and what was printed on stdout and stderr."""
        assert self._process.stdout and self._process.stderr
        printed: dict[int, bytearray] = {}
        exited = os.pidfd_open(self._process.pid)
        deadline = self._started + self.limits.wall_s
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(exited, selectors.EVENT_READ)
                for stream in (self._process.stdout, self._process.stderr):
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream.fileno(), selectors.EVENT_READ)
                    printed[stream.fileno()] = bytearray()
                status = "timeout"
                while (left := deadline - time.monotonic()) > 0:
                    ready = [key.fd for key, _ in selector.select(left)]
                    for fd in ready:
                        if fd != exited and not _drain(fd, printed[fd], self.limits.output_bytes):
                            selector.unregister(fd)
                    if sum(map(len, printed.values())) > self.limits.output_bytes:
                        status = "output_limit"
                        break
                    if exited in ready:
                        # Another process may still hold the pipes; what this one printed is in them.
                        for fd, kept in printed.items():
                            _drain(fd, kept, self.limits.output_bytes)
                        over = sum(map(len, printed.values())) > self.limits.output_bytes
                        status = "output_limit" if over else "finished"
                        break
        finally:
            os.close(exited)
        stdout, stderr = (bytes(kept[: self.limits.output_bytes]) for kept in printed.values())
        return status, stdout, stderr


def require_linux() -> None:
    if not sys.platform.startswith("linux"):
        raise InputError(f"running a completion's code needs Linux; this is {sys.platform}")


@functools.cache
def warn_unsafe() -> None:
    """Once a process."""
    log.warning(
        "--reward code:unsafe_sandbox=true: code of completions runs with limits alone; it reaches files and network"
    )


def _drain(fd: int, kept: bytearray, limit: int) -> bool:
    """Read what is there, up to a little over `limit`; False where there is nothing more to come."""
    while len(kept) <= limit:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        kept += data
    return True


def _read_only_file(content: bytes) -> int:
    """A file without a name that holds `content` and that nobody can change."""
    fd = os.memfd_create("input", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _rlimits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_CORE": 0,
    }


_numbers = itertools.count()
FIRST_USER, USERS = 61184, 4096  # what systemd keeps for services that get a user of their own


def _user(unsafe: bool) -> int | None:
    """A user id for a sandbox that root starts, as its own as can be: the kernel counts processes by user."""
    if os.geteuid() != 0 or unsafe:
        return None
    return FIRST_USER + (os.getpid() * 61 + next(_numbers)) % USERS
