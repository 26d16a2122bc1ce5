"""How much each array takes, how much each launch pays for, and how much a graph launches."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fake_cuda.driver import FakeGpus

HERE = Path(__file__).parent
PRELOAD = HERE.parents[1] / "csrc/preload"

pytestmark = [
    pytest.mark.skipif(not PRELOAD.is_dir(), reason="needs the C sources beside the tests"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def run_model(
    directory: Path,
    model: str,
    sources: Sequence[str],
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Build a model with parts of the library, and run it to its end, which is to be well."""
    program = directory / model
    options = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    files = [str(HERE / f"{model}.c"), *(str(PRELOAD / f"{name}.c") for name in sources)]
    subprocess.run(["cc", *options, *files, "-o", str(program), "-ldl"], check=True)
    done = subprocess.run(
        [str(program), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_each_launch_pays_for_its_kernels_and_blocks(gpus: FakeGpus, tmp_path: Path) -> None:
    sources = ["launches", "graph_sizes", "books"]
    driver = str(gpus.libraries / "libcuda.so.1")
    environment = gpus.environment()
    run_model(tmp_path, "launch_sizes_model", sources, driver, environment=environment)


def test_each_array_takes_what_its_format_and_shape_take(tmp_path: Path) -> None:
    run_model(tmp_path, "array_sizes_model", ["arrays"])
