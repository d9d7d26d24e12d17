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
    "--unsafe-sandbox, which only limits what code may use up"
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


def command(tmp_bytes: int, seccomp_fd: int, harness: Path) -> list[str]:
    """What to put before a command so that it runs in a sandbox, with `harness` as `HARNESS`.

    It sees the system's libraries, the interpreter's own folder and `harness`, all read-only, a few devices and an
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
    for folder in interpreter_folders():
        for parent in reversed(Path(folder).parents):
            arguments += ["--dir", str(parent)]  # open to all, which those that --ro-bind makes are not
        arguments += ["--ro-bind", folder, folder]
    arguments += ["--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/tmp"]
    arguments += ["--ro-bind", str(harness), HARNESS, "--remount-ro", "/", "--chdir", "/tmp"]
    return [*arguments, "--seccomp", str(seccomp_fd)]


def interpreter() -> str:
    """This Python outside any virtual environment."""
    return os.path.realpath(sys.executable)


@functools.cache
def interpreter_folders() -> Sequence[str]:
    """Folders outside /usr that the interpreter is in."""
    folders = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    folders.add(str(Path(interpreter()).parent.parent))
    return sorted(folder for folder in folders if folder != "/usr" and not folder.startswith("/usr/"))


@functools.cache
def system_folders() -> Sequence[str]:
    arguments = ["--ro-bind", "/usr", "/usr", "--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in ("/bin", "/lib", "/lib64", "/lib32"):
        if os.path.islink(name):
            arguments += ["--symlink", os.readlink(name).lstrip("/"), name]
        elif os.path.isdir(name):
            arguments += ["--ro-bind", name, name]
    return arguments
