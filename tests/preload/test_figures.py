"""How busy each process is, read from an NVML whose lists grow and lie."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "csrc/preload/busy_figures.c"

pytestmark = [
    pytest.mark.skipif(not FIGURES.is_file(), reason="needs the C sources beside the tests"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def test_more_samples_than_were_expected_are_read_within_their_list(tmp_path: Path) -> None:
    program = tmp_path / "figures_model"
    options = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(HERE / "figures_model.c"), str(FIGURES)]
    subprocess.run(["cc", *options, *sanitize, *sources, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
