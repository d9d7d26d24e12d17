"""System calls that a sandboxed program is refused, as a filter for `bwrap --seccomp`.

Refused are memory that no limit counts (System V segments, memfd), new namespaces and mounts, reading other
processes, and interfaces of the kernel that no solution of a task needs. Sockets are refused too; a pair of
connected ones (`socketpair`) is not, as asyncio needs it.
"""

from __future__ import annotations

import errno
import platform
import struct

# Name: number on x86_64, number on aarch64.
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "personality": (135, 92), "socket": (41, 198),
}  # fmt: skip
CLONE = (56, 220)
CLONE3 = 435
CLONE_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWUSER, NEWPID, NEWNET, NEWNS, NEWIPC, NEWUTS, NEWCGROUP, NEWTIME
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*
X32 = 0x40000000

LOAD, EQUAL, ANY_BIT, AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


def seccomp_filter() -> bytes:
    """The filter as an array of `struct sock_filter`; on a machine whose numbers are not listed it refuses nothing."""
    if platform.machine() not in ARCHITECTURES:
        return _step(RETURN, ALLOW)
    column, architecture = ARCHITECTURES[platform.machine()]
    program = [
        _step(LOAD, ARCHITECTURE), _step(EQUAL, architecture, 1, 0), _step(RETURN, KILL),
        _step(LOAD, NUMBER), _step(AT_LEAST, X32, 0, 1), _step(RETURN, ERROR | errno.ENOSYS),
        # The C library falls back to clone, whose flags can be read.
        _step(EQUAL, CLONE3, 0, 1), _step(RETURN, ERROR | errno.ENOSYS),
    ]  # fmt: skip
    for numbers in REFUSED.values():
        program += [_step(EQUAL, numbers[column], 0, 1), _step(RETURN, ERROR | errno.EPERM)]
    program += [
        _step(EQUAL, CLONE[column], 0, 3), _step(LOAD, FIRST_ARGUMENT),
        _step(ANY_BIT, CLONE_NEW_NAMESPACES, 0, 1), _step(RETURN, ERROR | errno.EPERM),
        _step(RETURN, ALLOW),
    ]  # fmt: skip
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
