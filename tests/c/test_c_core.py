"""The C core's own tests: `make -C tests/c check`, program by program."""

import pytest
from support import c_tools

PROGRAMS = sorted(path.stem for path in c_tools.SOURCES.glob("test_*.c"))
# It searches /proc again and again, for none but its own processes.
SEARCHING = {"test_lock_points"}
# Storms of threads.
LONG = {"test_lifetime", "test_truncation"}


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=pytest.mark.slow if each in LONG else ()) for each in PROGRAMS],
)
def test_program(program):
    inside = c_tools.alone() if program in SEARCHING else ()
    c_tools.called([*inside, str(c_tools.build(program, "check"))])
