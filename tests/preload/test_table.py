"""The table of allocations, against a plain list."""

from pathlib import Path

import pytest
from support.c_model import build_model, needs_c, run_model

pytestmark = needs_c


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_table_holds_what_was_put_and_not_taken(tmp_path: Path, seed: int) -> None:
    run_model(build_model(tmp_path, "table_model", "table"), str(seed))
