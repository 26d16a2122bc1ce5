"""What this process has allocated where, against a plain list of it."""

from pathlib import Path

import pytest
from c_model import build_model, needs_c, run_model

pytestmark = needs_c


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("books"), "books_model", "books")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_books_hold_what_was_entered_and_not_struck_out(model: Path, seed: int) -> None:
    run_model(model, str(seed))


@pytest.mark.slow
def test_pools_are_charged_for_what_they_hold_and_have_promised(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "pools_model", "pools", "books"))
