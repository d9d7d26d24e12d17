"""The first program in a sandbox: takes its limits upon itself, then runs its job.

`launch.py FD`: FD is a file with the job as JSON, read to its end.
"""

import importlib
import json
import os
import resource
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    fd = int(sys.argv[1])
    with open(fd, encoding="utf-8") as file:
        job = json.load(file)
    sys.argv[:] = ["program.py"]
    start = run_program if job["mode"] == "program" else imported(job["mode"]).run
    restrict(job.pop("user"), job.pop("limits"))
    start(job)


def imported(name):
    """A module of this folder, while its files can still be read."""
    sys.path.insert(0, os.path.dirname(HERE))
    try:
        return importlib.import_module(f"{os.path.basename(HERE)}.{name}")
    finally:
        del sys.path[0]


def restrict(user, limits):
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for name, value in limits.items():
        kind = getattr(resource, name)
        # SIGXCPU at the first CPU limit says why; SIGKILL at the second cannot be ignored.
        hard = lowest(value + (name == "RLIMIT_CPU"), resource.getrlimit(kind)[1])
        resource.setrlimit(kind, (lowest(value, hard), hard))


def lowest(value, limit):
    return value if limit == resource.RLIM_INFINITY else min(value, limit)


def run_program(job):
    program = types.ModuleType("__main__")
    program.__dict__["__file__"] = "program.py"
    sys.modules["__main__"] = program
    exec(compile(job["code"], "program.py", "exec"), program.__dict__)


if __name__ == "__main__":
    main()
