"""A process whose address space is locked for as long as it likes; run as a program.

    python locked_process.py DIRECTORY [FILE]

It mounts a FUSE file system of its own over DIRECTORY, in a mount namespace of its own, and maps a
file in there twice: once to leave a page that has to be written, and once for direct access, for
which the kernel writes that page first. It waits for the server with the address space locked, and
the server, which is another process, never takes the page. With FILE, that is mapped before.

Prints its pid, locks itself when it is told to by a line, prints its pid again when the lock is
held, and ends with its standard input.
"""

import ctypes
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

from fuse_mount import mount

_HEADER = struct.Struct("=IIQQIIII")
_LOOKUP, _GETATTR, _OPEN, _READ, _WRITE, _INIT = 1, 3, 14, 15, 16, 26
_FILE = 2
_SIZE = 1 << 16
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _PR_SET_PDEATHSIG = 0x20000, 0x4000, 1 << 18, 1


def attributes(node: int) -> bytes:
    mode = 0o100666 if node == _FILE else 0o40777
    return struct.pack(
        "=QQQQQQIIIIIIIIII", node, _SIZE, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0
    )


def serve(descriptor: int) -> None:
    """Answer all but what is to be written; every open but the first is for direct access."""
    opened = 0
    while True:
        request = os.read(descriptor, 1 << 20)
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        answer: bytes | None = None
        if opcode == _WRITE:
            continue
        if opcode == _INIT:
            answer = struct.pack("=IIIIHHIIHHI7I", 7, 31, 0, 0, 12, 10, 4096, 1, 0, 0, 0, *[0] * 7)
        elif opcode == _GETATTR:
            answer = struct.pack("=QII", 0, 0, 0) + attributes(node)
        elif opcode == _LOOKUP:
            answer = struct.pack("=QQQQII", _FILE, 0, 0, 0, 0, 0) + attributes(_FILE)
        elif opcode == _OPEN:
            opened += 1
            answer = struct.pack("=QII", opened, int(opened > 1), 0)
        elif opcode == _READ:
            offset, size = struct.unpack_from("=QI", request, _HEADER.size + 8)
            answer = bytes(max(0, min(size, _SIZE - offset)))
        if answer is None:
            os.write(descriptor, struct.pack("=IiQ", 16, -38, unique))
        else:
            os.write(descriptor, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def lock_itself(path: Path) -> None:
    """Never comes back."""
    cached, direct = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    dirty = mmap.mmap(cached, _SIZE)
    dirty[0] = 1
    mmap.mmap(direct, _SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)


def is_locked(pid: int) -> bool:
    """Whether it waits in the kernel, and for nothing that would end by itself."""
    for _ in range(20):
        text = Path(f"/proc/{pid}/stat").read_text()
        if text.rpartition(") ")[2][0] != "D":
            return False
        time.sleep(0.01)
    return True


def main(directory: str, *mapped: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    kept = []
    for each in mapped:
        with open(each, "r+b") as file:  # noqa: PTH123
            kept.append(mmap.mmap(file.fileno(), 0))
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        sys.exit("cannot make a mount namespace")
    fuse = mount(Path(directory))
    own = os.getpid()
    if os.fork() == 0:
        die_with(own)
        serve(fuse)
    told, telling = os.pipe()
    locked = os.fork()
    if locked == 0:
        die_with(own)
        os.read(told, 1)
        # Only the server may have it: who else has it would keep it from going.
        os.close(fuse)
        lock_itself(Path(directory, "file"))
    os.close(fuse)
    print(locked, flush=True)
    sys.stdin.readline()
    os.write(telling, b".")
    while not is_locked(locked):
        if os.waitpid(locked, os.WNOHANG)[0]:
            sys.exit("it did not lock itself")
        time.sleep(0.01)
    print(locked, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
