"""The side of the program: runs a completion's code, then calls its functions for the tests."""

import json
import os
import sys
import types

from .plain import NotPlain, decode, dumps, encode


def run(job):
    silence()
    requests, replies = os.fdopen(job["requests"], "rb"), os.fdopen(job["replies"], "wb", buffering=0)
    program = types.ModuleType("program")
    sys.modules["program"] = program
    exec(compile(job["code"], "program.py", "exec"), program.__dict__)
    for line in requests:
        replies.write(dumps(answer(program.__dict__, json.loads(line))))


def silence():
    """What is printed goes nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)


def answer(names, request):
    if "names" in request:
        return [described(names, name) for name in request["names"]]
    try:
        arguments = [decode(item) for item in request["arguments"]]
        keywords = {name: decode(item) for name, item in request["keywords"].items()}
        result = names[request["call"]](*arguments, **keywords)
        reply = {"value": plain_or_opaque(result)}
        if any(isinstance(item, (list, dict, set, bytearray)) for item in arguments):
            reply["arguments"] = [plain_or_opaque(item) for item in arguments]
        return reply
    except BaseException as error:
        return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": message(error)}


def described(names, name):
    if name not in names:
        return {"missing": True}
    return {"function": True} if callable(names[name]) else {"value": plain_or_opaque(names[name])}


def plain_or_opaque(value):
    try:
        return encode(value)
    except (NotPlain, RecursionError):
        return {"opaque": type(value).__name__}


def message(error):
    try:
        return str(error)[:1000]
    except Exception:
        return ""
