"""Programs that try to get out of the sandbox, to use it up, or to stay."""

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.sandbox import Limits, run_python
from grpo.sandbox.seccomp import ARCHITECTURES, CLONE, REFUSED

LIMITS = Limits(wall_s=10, cpu_s=2, memory_bytes=256 << 20, tmp_bytes=4 << 20, file_bytes=2 << 20, processes=6)
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
DEVICES = [
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "console",
    "pts",
    "ptmx",
    "shm",
    "fd",
    "stdin",
    "stdout",
    "stderr",
    "core",
]
COLUMN = ARCHITECTURES[platform.machine()][0]
MARK = "ESCAPED"

ESCAPES = {
    "read /etc/shadow": "open('/etc/shadow').read()",
    "list root's home": "import os, sys; assert set(os.listdir('/root')) - set(sys.prefix.split('/'))",
    "list home folders": "import os; assert os.listdir('/home')",
    "read this repository": f"open({__file__!r}).read()",
    "write into the root": "open('/file', 'w')",
    "write into the library": "import os; open(os.__file__, 'a')",
    "write into the harness": "open('/inside/launch.py', 'a')",
    "write into shared memory": "open('/dev/shm/file', 'w')",
    "write over a device's name": "import os; os.rename('/dev/null', '/dev/other')",
    "read a disk": f"import os; assert set(os.listdir('/dev')) - set({DEVICES!r})",
    "follow a symbolic link out": "import os; os.symlink('/etc/shadow', '/tmp/l'); open('/tmp/l').read()",
    "climb out by dots": "open('/tmp/../../../../../../etc/shadow').read()",
    "see processes in /proc": "import os; assert os.listdir('/proc')",
    "read the memory of process 1": "open('/proc/1/mem', 'rb')",
    "connect to the network": "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
    "open a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "open a raw socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "become root": "import os; os.setuid(0)",
    "change the root": "import os; os.chroot('/tmp')",
    "raise a limit": "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)",
    "trace process 1": LIBC + "assert libc.ptrace(16, 1, 0, 0) == 0",
    "mount a file system": LIBC + "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "mount /proc": LIBC + "assert libc.mount(b'proc', b'/tmp', b'proc', 0, None) == 0",
    "take a user namespace": LIBC + "assert libc.unshare(0x10000000) == 0",
    "clone into a namespace": LIBC + f"assert libc.syscall({CLONE[COLUMN]}, 0x10000000 | 17, 0, 0, 0, 0) > 0",
    "take uncounted shared memory": LIBC + "assert libc.shmget(0, 1 << 20, 0o1600) >= 0",
    "take an uncounted memory file": "import os; os.memfd_create('x')",
    "make a device": "import os, stat; os.mknod('/tmp/d', 0o666 | stat.S_IFCHR, os.makedev(1, 1))",
    "type into the terminal": "import fcntl, termios; fcntl.ioctl(open('/dev/tty'), termios.TIOCSTI, b'x')",
    "find a secret in the environment": "import os; assert 'swordfish' in str(os.environ)",
    "change its input": "import os; os.ftruncate(0, 1 << 20)",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_a_program_cannot(name, monkeypatch):
    monkeypatch.setenv("PASSWORD", "swordfish")
    assert MARK not in run_python(f"{ESCAPES[name]}\nprint({MARK!r})", limits=LIMITS).stdout


def test_what_is_allowed_gets_to_the_mark():
    assert MARK in run_python(f"open('/tmp/file', 'w').write('x')\nprint({MARK!r})", limits=LIMITS).stdout


def test_every_refused_system_call_says_so():
    numbers = [numbers[COLUMN] for numbers in REFUSED.values()]
    code = f"{LIBC}print([n for n in {numbers} if libc.syscall(n, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1])"
    assert run_python(code, limits=LIMITS).stdout == "[]\n"


@pytest.mark.parametrize("victim", ["1", "os.getppid()", "-1", "0", "-os.getpgid(0)"])
def test_killing_others_reaches_nobody_outside(victim):
    run_python(f"import os; os.kill({victim}, 9)", limits=LIMITS)
    assert run_python("print(1)", limits=LIMITS).stdout == "1\n"


def test_a_program_holds_no_files_but_its_own():
    code = """if 1:
        import os
        def is_open(fd):
            try:
                os.fstat(fd)
            except OSError:
                return False
            return True
        print([fd for fd in range(64) if is_open(fd)])
    """
    assert run_python(code, limits=LIMITS).stdout == "[0, 1, 2]\n"


def test_a_listener_on_this_machine_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2); print({MARK!r})"
        assert MARK not in run_python(code, limits=LIMITS).stdout


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "timeout"),
        (
            "import signal as s\nfor n in {*range(1, 32)} - {9, 19}: s.signal(n, s.SIG_IGN)\nwhile True: pass",
            "failed",
        ),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "output_limit"),
        ("import os\nwhile True: os.write(2, b'x' * 65536)", "output_limit"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "failed"),
        ("x = 'x' * (1 << 40)", "failed"),
        ("import mmap\nx = [mmap.mmap(-1, 1 << 30)]", "failed"),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "failed timeout"),
        ("open('/tmp/f', 'wb').write(bytes(1 << 26))", "failed"),
        ("for i in range(100): open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))", "failed"),
        ("x = [open(f'/tmp/{i}', 'wb') for i in range(1000)]", "failed"),
        (
            "import threading as t, time\nfor _ in range(100): t.Thread(target=time.sleep, args=(1,)).start()",
            "failed",
        ),
        ("print(len(str(10 ** 10 ** 7)))", "failed timeout"),
        ("import os; os.kill(os.getpid(), 11)", "failed"),
        ("import os; os.close(1); os.close(2); os._exit(3)", "failed"),
        ("input()", "failed"),
    ],
)
def test_a_program_cannot_use_more_than_its_limits(code, status):
    started = time.monotonic()
    outcome = run_python(code, limits=replace(LIMITS, cpu_s=1, wall_s=4.0))
    assert outcome.status in status.split()
    assert len(outcome.stdout) + len(outcome.stderr) <= LIMITS.output_bytes * 2
    assert time.monotonic() - started < 5


def test_a_sleeping_program_ends_at_the_wall_limit():
    started = time.monotonic()
    assert run_python("import time; time.sleep(60)", limits=Limits(wall_s=0.7)).status == "timeout"
    assert time.monotonic() - started < 1.7


def test_processes_are_counted():
    code = """if 1:
        import os, time
        made = 0
        try:
            while made < 100:
                if os.fork() == 0:
                    time.sleep(30)
                made += 1
        except OSError:
            pass
        print(made, flush=True)
        os._exit(0)
    """
    outcome = run_python(code, limits=LIMITS)
    assert 0 < int(outcome.stdout) < LIMITS.processes


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)",
        "import signal, subprocess, sys\nsubprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)",
    ],
    ids=["a fork bomb", "a daemon", "a detached program"],
)
def test_nothing_outlives_a_run(bomb):
    before = processes_of_sandboxes()
    started = time.monotonic()
    run_python(bomb, limits=Limits(wall_s=1, cpu_s=1, processes=6))
    assert time.monotonic() - started < 3
    assert all_end(processes_of_sandboxes() - before)


def test_the_sandbox_of_a_killed_trainer_ends_too():
    code = "from grpo.sandbox import run_python; run_python('import time; print(1, flush=True); time.sleep(600)')"
    before = processes_of_sandboxes()
    trainer = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while not (appeared := processes_of_sandboxes() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert appeared
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert all_end(appeared)


def all_end(processes: set[int]) -> bool:
    """Whether all of them are gone within seconds; others may come and go."""
    deadline = time.monotonic() + 5
    while processes & processes_of_sandboxes() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes & processes_of_sandboxes()


def processes_of_sandboxes() -> set[int]:
    """Living processes of this machine that are in another pid namespace than this one."""
    found = set()
    ours = os.readlink("/proc/self/ns/pid")
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if os.readlink(folder / "ns/pid") != ours and state != "Z":
                    found.add(int(folder.name))
            except OSError:
                continue
    return found
