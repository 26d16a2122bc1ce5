"""The interface of libhamiregion.so as text, which csrc/abi.txt holds: see test_c_library.py.

    python tests/c_abi.py LIBRARY > csrc/abi.txt

Functions with their types, structs with the offset of each field, enums and numbers: what a program
that was compiled before relies on. Read from the public headers; every function must be in LIBRARY.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

CSRC = Path(__file__).resolve().parents[1] / "csrc"
PUBLIC = ("region.h", "layout.h", "lock.h", "slots.h", "limiter.h")
# What cffi knows by itself, and would not read.
SYSTEM = ("stddef.h", "stdint.h")


def preprocessed(*flags: str) -> str:
    """The public headers after the preprocessor, without the system's."""
    text = "".join(f'#include "{name}"\n' for name in PUBLIC)
    with tempfile.TemporaryDirectory() as empty:
        for name in SYSTEM:
            Path(empty, name).touch()
        command = ["cc", "-std=gnu11", "-nostdinc", f"-I{empty}", f"-I{CSRC}", "-E", *flags, "-"]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout


def describe(library: Path) -> list[str]:
    """The lines of csrc/abi.txt."""
    text = preprocessed("-P")
    # What is compiled into the callers shows in the structs that it reads.
    text = re.sub(r"^static inline [^;{]*\{.*?^\}\n", "", text, flags=re.DOTALL | re.MULTILINE)
    ffi: Any = FFI()
    ffi.cdef(text)
    lib = ffi.dlopen(str(library))
    lines = [
        f"function {name} {ffi.typeof(getattr(lib, name)).cname}"
        for name in sorted(set(re.findall(r"\b(hr_\w+)\(", text)))
    ]
    for name in sorted(ffi.list_types()[1]):
        struct = ffi.typeof(f"struct {name}")
        if struct.fields is None:
            lines.append(f"struct {name} opaque")
            continue
        lines.append(f"struct {name} {ffi.sizeof(struct)} bytes")
        lines += [f"    {field.offset} {key} {field.type.cname}" for key, field in struct.fields]
    for name in sorted(re.findall(r"\benum (\w+) \{", text)):
        values = ffi.typeof(f"enum {name}").relements
        lines += [f"enum {name}", *(f"    {key} {value}" for key, value in values.items())]
    defined = re.findall(r"^#define (HR_\w+) (.+)$", preprocessed("-dM"), flags=re.MULTILINE)
    lines += [f"define {name} {value}" for name, value in sorted(defined)]
    return lines


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in describe(Path(sys.argv[1]))))
