"""How busy each process is, read from an NVML whose lists grow and lie; and who else is there."""

from pathlib import Path

import pytest
from c_model import build_model, needs_c, run_model

pytestmark = needs_c


def test_more_samples_than_were_expected_are_read_within_their_list(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "figures_model", "busy_figures"))


def test_who_else_uses_a_gpu_is_told_by_what_nvml_and_proc_show(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "neighbours_model", "neighbours", "busy_figures"))


@pytest.mark.slow
def test_who_measures_and_which_pid_is_whose_follow_from_what_nvml_and_the_region_show(
    tmp_path: Path,
) -> None:
    parts = ("sampler", "own_pid", "busy_figures")
    run_model(build_model(tmp_path, "sampling_model", *parts))


def test_what_one_process_has_asked_all_others_find_behind_the_region(tmp_path: Path) -> None:
    run_model(build_model(tmp_path, "shared_figures_model", "shared_figures"))
