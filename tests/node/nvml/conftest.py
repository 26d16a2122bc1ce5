"""The fake driver that the tests share."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "integration")]

from integration.conftest import (  # noqa: E402, F401 (after the path)
    fake_driver,
    nvml_library,
    nvml_sampler,
)
