"""A CUDA program for tests: does the driver calls that it reads, one JSON list a line.

Each line is a list of calls, each call a function's name and its arguments: numbers, None for
NULL, "out" for a number that the function writes, "inout:N" for one that it also reads, "room:N"
for that many bytes that it writes, "bytes:HEX" for memory that it reads, "struct:HEX" for
a structure by its value, "text:..." for a string.
The answer is a list: for each call its code and what was written.

A name may stand for more than a function: "fork" runs the calls that follow it in a child and
answers for them; "thread" runs them in a thread; "exec" becomes another program; "exit" ends;
"symbol" tells the address of a function as dlsym gives it, and "hooks" what cuGetProcAddress gives.

Standard library only, for `python -I -S`.
"""

import ctypes
import json
import os
import sys
import threading
from typing import Any

LIBRARIES = {"cu": "libcuda.so.1", "nv": "libnvidia-ml.so.1", "fa": "libcuda.so.1"}
loaded: dict[str, ctypes.CDLL] = {}


# Functions that drivers of CUDA 11 lack: programs ask for them by name and version.
NEW = {
    "cuCtxCreate_v4": ("cuCtxCreate", 12050),
    "cuGreenCtxCreate": ("cuGreenCtxCreate", 12040),
    "cuGreenCtxDestroy": ("cuGreenCtxDestroy", 12040),
    "cuGraphInstantiateWithParams": ("cuGraphInstantiateWithParams", 12000),
}


def function(name: str) -> Any:
    kind = name[:2]
    if kind not in loaded:
        loaded[kind] = ctypes.CDLL(LIBRARIES[kind])
    if name not in NEW:
        return getattr(loaded[kind], name)
    found = ctypes.c_void_p()
    plain, version = NEW[name]
    code = loaded[kind].cuGetProcAddress_v2(
        plain.encode(), ctypes.byref(found), version, ctypes.c_uint64(0), None
    )
    if code != 0:
        raise AttributeError(name)
    return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)


def call(name: str, *given: Any) -> list[Any]:
    arguments: list[Any] = []
    outs: list[Any] = []
    for each in given:
        kind, _, text = each.partition(":") if isinstance(each, str) else ("", "", "")
        if kind in ("out", "inout", "room"):
            size = int(text or 0)
            outs.append((ctypes.c_char * size)() if kind == "room" else ctypes.c_uint64(size))
            arguments.append(ctypes.byref(outs[-1]))
        elif kind == "bytes":
            data = bytes.fromhex(text)
            arguments.append(ctypes.create_string_buffer(data, len(data)))
        elif kind == "struct":
            fields = [("all", ctypes.c_char * (len(text) // 2))]
            structure = type("structure", (ctypes.Structure,), {"_fields_": fields})
            arguments.append(structure.from_buffer_copy(bytes.fromhex(text)))
        elif kind == "text":
            arguments.append(text.encode())
        else:
            arguments.append(each if each is None else ctypes.c_uint64(each))
    code = function(name)(*arguments)
    return [code, *(out.raw.hex() if hasattr(out, "raw") else out.value for out in outs)]


def address(name: str) -> list[Any]:
    return [0, ctypes.cast(function(name), ctypes.c_void_p).value]


def forked(calls: list[list[Any]]) -> list[Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(writer, "w") as out:
            json.dump(answers(calls), out)
        # As a program that ends, not as one that is shot: destructors run.
        sys.stdout.flush()
        ctypes.CDLL(None).exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        text = source.read()
    _, status = os.waitpid(pid, 0)
    return [status, json.loads(text or "null")]


def threaded(calls: list[list[Any]]) -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(answers(calls)), daemon=True)
    thread.start()
    thread.join()
    return [0, found]


def answers(calls: list[list[Any]]) -> list[Any]:
    found = []
    for number, (name, *given) in enumerate(calls):
        if name == "fork":
            return [*found, forked(calls[number + 1 :])]
        if name == "thread":
            return [*found, threaded(calls[number + 1 :])]
        if name == "exec":
            os.execvp(given[0], given)
        if name == "exit":
            sys.exit(given[0])
        found.append(address(*given) if name == "symbol" else call(name, *given))
    return found


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answers(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
