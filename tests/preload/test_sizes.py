"""How much each array takes, how much each launch pays for, and how much a graph launches."""

from pathlib import Path

from c_model import build_model, needs_c, run_model
from fake_cuda.driver import FakeGpus

pytestmark = needs_c


def test_each_launch_pays_for_its_kernels_and_blocks(gpus: FakeGpus, tmp_path: Path) -> None:
    parts = ("launches", "graph_sizes", "books")
    program = build_model(tmp_path, "launch_sizes_model", *parts, sanitizers=False)
    run_model(program, str(gpus.libraries / "libcuda.so.1"), environment=gpus.environment())


def test_each_array_takes_what_its_format_and_shape_take(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "array_sizes_model", "arrays"))
