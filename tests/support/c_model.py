"""Parts of the library against a model of what they should do: programs of their own, sanitized."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[1] / "preload"
SOURCES = MODELS.parents[1] / "csrc/preload"
# To compile them costs more than to run them.
OPTIONS = ["-std=gnu11", "-O0", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

needs_c = [
    pytest.mark.skipif(not SOURCES.is_dir(), reason="needs the C sources beside the tests"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def build_model(directory: Path, model: str, *parts: str, sanitizers: bool = True) -> Path:
    """Compile a model together with parts of the library.

    Args:
        directory: Where the program is put.
        model: Its source, without the suffix.
        parts: Those of the library, likewise.
        sanitizers: Not where it loads the driver, whose library knows nothing of them.
    """
    program = directory / model
    files = [str(MODELS / f"{model}.c"), *(str(SOURCES / f"{part}.c") for part in parts)]
    checks = SANITIZERS if sanitizers else []
    subprocess.run(["cc", *OPTIONS, *checks, *files, "-o", str(program), "-ldl"], check=True)
    return program


def run_model(program: Path, *arguments: str, environment: Mapping[str, str] = os.environ) -> None:
    """Run a model to its end, which is to be well."""
    done = subprocess.run(
        [str(program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
