"""Parts of the library, each against a model of all that it asks, where anything may fail."""

from pathlib import Path

import pytest
from c_model import build_model, needs_c, run_model

pytestmark = needs_c

ALLOCATING = ("allocating", "memory", "arrays")
MEMORY = (*ALLOCATING, "async", "physical", "pools", "context_table", "graph_memory")
MODELS = {
    "allocations_model": MEMORY,
    "context_table_model": ("context_table",),
    "contexts_model": (*ALLOCATING, "contexts", "context_table", "books"),
    "charges_model": ("charges",),
    "complaints_model": ("complaints",),
    "context_memory_model": ("context_memory",),
    "crowd_model": ("crowd",),
    "held_memory_model": (*MEMORY, "books"),
    "nvml_model": ("nvml",),
    "regulator_model": ("regulator",),
    "session_model": ("session",),
    "threads_model": ("threads",),
    "throttle_model": ("throttle", "bucket"),
    "watcher_model": ("watcher",),
}
# These go through the most states; what the library does with them has tests beside this one.
LONG = {"allocations_model", "contexts_model", "regulator_model"}


@pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=pytest.mark.slow if each in LONG else ()) for each in MODELS],
)
def test_a_part_does_what_its_model_says(tmp_path: Path, model: str) -> None:
    run_model(build_model(tmp_path, model, *MODELS[model]))
