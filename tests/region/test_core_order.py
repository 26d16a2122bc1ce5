"""The C core's files in their order: each uses only those below it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import c_tools

CORE = Path(__file__).resolve().parents[2] / "csrc"

# Lowest first. A file may include the headers, and call the functions, of those before it.
ORDER = (
    "layout",
    "base",
    "guard",
    "proc",
    "search",
    "identify",
    "handles",
    "byte_lock",
    "fields",
    "mappers",
    "slot_table",
    "lock",
    "evidence",
    "table_view",
    "deaths",
    "recovery",
    "reap",
    "orphans",
    "attach",
    "accounting",
    "region",
    "snapshot",
    "read_set",
    "edit",
    "create",
    "limiter",
)
RANK = {name: rank for rank, name in enumerate(ORDER)}

# Headers of the public interface hold no order: what they declare is found by its symbol.
PUBLIC_HEADERS = {"api.h", "region.h"}
HEADER_OF = {
    "internal.h": "base",
    "layout_rows.h": "layout",
    "lock.h": "byte_lock",
    "slots.h": "slot_table",
    "testpoint.h": "base",
}

pytestmark = pytest.mark.skipif(not CORE.is_dir(), reason="needs the C sources beside the tests")


def floor_of(name: str) -> str:
    return HEADER_OF.get(name, Path(name).stem)


def test_every_file_has_its_place() -> None:
    assert {path.stem for path in CORE.glob("*.c")} == set(ORDER)


def test_no_file_includes_a_header_from_above() -> None:
    upwards = [
        f"{path.name} includes {header}"
        for path in sorted(CORE.glob("*.[ch]"))
        if path.name not in PUBLIC_HEADERS
        for header in re.findall(r'^#include "(\w+\.h)"', path.read_text(), re.MULTILINE)
        if header not in PUBLIC_HEADERS and RANK[floor_of(header)] > RANK[floor_of(path.name)]
    ]
    assert upwards == []


def symbols(obj: Path, kind: str) -> set[str]:
    listed = subprocess.run(
        ["nm", kind, "--format=posix", str(obj)], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("hr_")}


@pytest.mark.slow
def test_no_file_calls_a_function_from_above() -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    # The core of the C tests that stop at test points: it has all calls that there are.
    built = c_tools.build("points/core.a", "check").parent
    home = {
        symbol: name for name in ORDER for symbol in symbols(built / f"{name}.o", "--defined-only")
    }
    upwards = [
        f"{name}.c uses {symbol} of {home[symbol]}.c"
        for name in ORDER
        for symbol in sorted(symbols(built / f"{name}.o", "--undefined-only"))
        if RANK[home[symbol]] > RANK[name]
    ]
    assert upwards == []
