"""What a CUDA driver answers in this process: questions as JSON on stdin, answers on stdout.

A process of its own for each environment, as a driver is loaded once.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

LONGEST_CALL_S = 20
# Room for each answer, and for a struct of zeros.
ROOM = 4096


class Libraries:
    """The libraries of this process; an address is one's path and how far behind its start."""

    def __init__(self) -> None:
        self._maps: list[tuple[int, int, str]] = []
        self._starts: dict[str, int] = {}
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, *_, path = line.split(maxsplit=5)
            start, end = (int(each, 16) for each in span.split("-"))
            self._maps.append((start, end, path))
            self._starts.setdefault(path, start)

    def place(self, address: int | None) -> list[Any] | None:
        for start, end, path in self._maps:
            if address is not None and start <= address < end:
                return [path, address - self._starts[path]]
        return None


def addresses(cuda: ctypes.CDLL, asked: dict[str, Any]) -> list[Any]:
    """Result, status and place of each name, version and flags."""
    is_new = asked["function"] == "cuGetProcAddress_v2"
    ask, libraries = getattr(cuda, asked["function"]), Libraries()
    answers = []
    for name in asked["names"]:
        for version in asked["versions"]:
            for flags in asked["flags"]:
                found, status = ctypes.c_void_p(), ctypes.c_int(-1)
                more = [ctypes.byref(status)] if is_new else []
                result = ask(
                    *(name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags)), *more
                )
                answers.append([result, status.value, libraries.place(found.value)])
    return answers


def symbols(cuda: ctypes.CDLL, names: list[str]) -> dict[str, Any]:
    """The places of the functions that there are."""
    libraries = Libraries()
    found = {name: getattr(cuda, name, None) for name in names}
    return {
        name: libraries.place(ctypes.cast(function, ctypes.c_void_p).value)
        for name, function in found.items()
        if function is not None
    }


def code_of(function: Any, kinds: list[str]) -> int:
    """What a call returns in a child; the signal that ends it, as a negative number."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(LONGEST_CALL_S)
        given = [
            ctypes.create_string_buffer(ROOM) if kind == "pointer8" else ctypes.c_uint64(0)
            for kind in kinds
        ]
        os.write(writing, str(function(*given)).encode())
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, 16)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    return int(answer) if answer else -os.WTERMSIG(status)


def codes(cuda: ctypes.CDLL, functions: dict[str, list[str]]) -> dict[str, list[int]]:
    """Of each function that there is, before and after an attempt to start the driver."""
    found: dict[str, list[int]] = {}
    for _ in range(2):
        for name, kinds in functions.items():
            function = getattr(cuda, name, None)
            if function is not None:
                found.setdefault(name, []).append(code_of(function, kinds))
        found.setdefault("cuInit", []).append(cuda.cuInit(0))
    return found


def main() -> None:
    asked = json.load(sys.stdin)
    cuda = ctypes.CDLL("libcuda.so.1")
    answers = {
        "symbols": symbols(cuda, asked["symbols"]),
        "addresses": addresses(cuda, asked),
        "codes": codes(cuda, asked["codes"]),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
