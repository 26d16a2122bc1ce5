"""The C core's own tests: `make -C tests/c check`, program by program."""

import c_tools
import pytest

PROGRAMS = sorted(path.stem for path in c_tools.SOURCES.glob("test_*.c"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str) -> None:
    c_tools.called([str(c_tools.build(program, "check"))])
