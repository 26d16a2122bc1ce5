"""A node of files or processes, a fake driver, and an exporter of them."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "integration"), str(TESTS / "unit")]

from integration.conftest import (  # noqa: E402, F401
    _container_factory,
    exporter,
    fake_driver,
    files,
    nvml_library,
)
