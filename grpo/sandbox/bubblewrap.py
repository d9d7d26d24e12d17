"""The command line that puts a process into a bubblewrap sandbox."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.errors import InputError

HARNESS = "/inside"
OLDEST = (0, 7)  # the first with --size
HOW_TO_INSTALL = (
    "install it (Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap), or choose "
    "--reward code:unsafe_sandbox=true, which only limits what code may use up"
)

# Without a limit on arenas, every thread would reserve 64 MiB of address space for itself.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "MALLOC_ARENA_MAX": "2"}


@functools.cache
def bwrap() -> str:
    """The path of bubblewrap. Raises InputError where there is none that can be used."""
    path = shutil.which("bwrap")
    if path is None:
        raise InputError(f"running a completion's code needs bubblewrap, and there is no bwrap here: {HOW_TO_INSTALL}")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        raise InputError(f"{path} is {said.strip() or 'of unknown version'}; 0.7 or newer is needed: {HOW_TO_INSTALL}")
    return path


@functools.cache
def require_working() -> None:
    """Raises InputError where bubblewrap may not make a sandbox."""
    arguments = [*command(1 << 20, Path("/usr")), interpreter(), "-I", "-S", "-c", ""]
    tried = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, check=False)
    if tried.returncode != 0:
        said = tried.stderr.strip().splitlines()
        raise InputError(
            f"bubblewrap cannot make a sandbox here ({said[-1] if said else 'no message'}): a container must be "
            "allowed to make namespaces (docker run --privileged), other systems must allow them to users; or choose "
            "--reward code:unsafe_sandbox=true, which only limits what code may use up"
        )


def command(tmp_bytes: int, harness: Path) -> list[str]:
    """What to put before a command so that it runs in a sandbox, with `harness` as `HARNESS`.

    It sees the system's programs and libraries, the interpreter and `harness`, all read-only, a few devices and an
    empty /tmp of `tmp_bytes`; no /proc, no network, no process but its own, no environment. All of it ends when the
    process that started it ends.
    """
    arguments = [bwrap(), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:
        # The kernel does not count root's processes, also not under another name in a user namespace. The harness
        # takes a real user id of its own instead.
        arguments += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        arguments += ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    arguments += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += system_folders()
    for path in interpreter_parts():
        for parent in reversed(Path(path).parents):
            arguments += ["--dir", str(parent)]  # open to all, which those that --ro-bind makes are not
        arguments += ["--ro-bind", path, path]
    arguments += ["--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/tmp"]
    arguments += ["--ro-bind", str(harness), HARNESS, "--remount-ro", "/", "--chdir", "/tmp"]
    return arguments


def interpreter() -> str:
    """This Python outside any virtual environment."""
    return os.path.realpath(sys.executable)


@functools.cache
def interpreter_parts() -> Sequence[str]:
    """The interpreter and its libraries, where they are not in /usr; their folder may be somebody's home."""
    prefixes = {sys.base_prefix, sys.base_exec_prefix, str(Path(interpreter()).parent.parent)}
    parts = {os.path.realpath(os.path.join(prefix, name)) for prefix in prefixes for name in ("lib", "lib64")}
    return sorted(part for part in (interpreter(), *parts) if os.path.exists(part) and not part.startswith("/usr/"))


@functools.cache
def system_folders() -> Sequence[str]:
    arguments = ["--ro-bind", "/usr", "/usr", "--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in ("/bin", "/lib", "/lib64", "/lib32"):
        if os.path.islink(name):
            arguments += ["--symlink", os.readlink(name).lstrip("/"), name]
        elif os.path.isdir(name):
            arguments += ["--ro-bind", name, name]
    return arguments
