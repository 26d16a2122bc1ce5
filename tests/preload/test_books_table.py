"""What this process has allocated where, against a plain list of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BOOKS = HERE.parents[1] / "csrc/preload/books.c"

pytestmark = [
    pytest.mark.skipif(not BOOKS.is_file(), reason="needs the C sources beside the tests"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("books") / "books_model"
    options = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(HERE / "books_model.c"), str(BOOKS)]
    subprocess.run(["cc", *options, *sanitize, *sources, "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_books_hold_what_was_entered_and_not_struck_out(model: Path, seed: int) -> None:
    done = subprocess.run([str(model), str(seed)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
