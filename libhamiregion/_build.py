"""How the extension `libhamiregion._native` is made: cffi, out of line, abi3.

setuptools runs this file through `cffi_modules`, from the root of the project.
It must not import libhamiregion, whose extension does not exist yet.
"""

import os
import re
import runpy
import sysconfig
from pathlib import Path

from cffi import FFI

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent

VERSION = runpy.run_path(str(PACKAGE / "_version.py"))["__version__"]


def project_files(pattern: str) -> list[str]:
    """Paths relative to the root, sorted: absolute ones would end up in the sdist's manifest."""
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


# Free-threaded interpreters have no stable ABI.
STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

macros: list[tuple[str, str | None]] = [
    # Compiled in, so that Python can refuse an extension left over from another version.
    ("HR_VERSION", f'"{VERSION}"'),
]
if STABLE_ABI:
    # The limited API of the oldest CPython we support, not that of the one that builds.
    macros.append(("Py_LIMITED_API", "0x030A0000"))
if os.environ.get("HAMIREGION_TEST_BUILD") == "1":
    # Tests may say which pid namespace sees every process; never in a released wheel.
    macros.append(("HR_TEST_BUILD", "1"))

ffi = FFI()
api = (ROOT / "csrc" / "api.h").read_text(encoding="utf-8")
# cffi knows no other directives, and needs none.
ffi.cdef(re.sub(r"^#(ifndef|define HR_API_H|include|endif).*", "", api, flags=re.MULTILINE))
# Computed by the compiler.
ffi.cdef("""
#define HR_ABSENT ...
#define HR_SNAPSHOT_MAX_BYTES ...
#define HR_EDITS_MAX ...
""")
ffi.set_source(
    "libhamiregion._native",
    '#include "region.h"\n',
    sources=project_files("csrc/*.c"),
    include_dirs=["csrc"],
    depends=project_files("csrc/*.h"),
    define_macros=macros,
    extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
    py_limited_api=STABLE_ABI,
)
