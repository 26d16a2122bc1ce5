"""Which GPUs a program under a budget sees, and which limit each of them gets."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from libhamiregion.run import LaunchError
from libhamiregion.run.limits import memory_limits, sm_limits
from libhamiregion.run.nvml import Gpu
from libhamiregion.run.selection import Selection, visible_gpus
from libhamiregion.units import GIB

A, B, C = (
    Gpu(index, f"GPU-{letter * 8}-0", "NVIDIA H100", 80 * GIB) for index, letter in enumerate("abc")
)
OLD = Gpu(3, "GPU-dddddddd-0", "NVIDIA T4", 16 * GIB)
MIG_ONE = Gpu(1, "MIG-11111111-0", "NVIDIA A100 MIG 1g.5gb", 5 * GIB, mig=True)
MIG_TWO = Gpu(1, "MIG-22222222-0", "NVIDIA A100 MIG 3g.20gb", 20 * GIB, mig=True)


def seen(*gpus: Gpu, visible: str | None = None, order: str | None = None) -> Selection:
    said = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    return visible_gpus(gpus, {name: text for name, text in said.items() if text is not None})


def test_without_a_word_all_gpus_are_seen_in_the_order_of_nvidia_smi():
    selection = seen(A, B)
    assert selection.gpus == (A, B)
    assert selection.variables() == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("2,0", (C, A)),
        ("GPU-bbbbbbbb-0", (B,)),
        ("GPU-b, 0", (B, A)),
        # CUDA stops at the first that it does not know, or that is not the only one.
        ("1,7,0", (B,)),
        ("1,-1,0", (B,)),
        ("1,GPU-,0", (B,)),
        ("1,1", (B,)),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible, gpus):
    selection = seen(A, B, C, visible=visible)
    assert selection.gpus == gpus
    assert "CUDA_VISIBLE_DEVICES" not in selection.variables()


@pytest.mark.parametrize("visible", ["", "-1", "7", "NoDevFiles"])
def test_an_environment_that_hides_every_gpu_is_refused(visible):
    with pytest.raises(LaunchError, match=f"CUDA_VISIBLE_DEVICES={visible} hides every GPU"):
        seen(A, B, visible=visible)


def test_a_machine_without_gpus_is_refused():
    with pytest.raises(LaunchError, match="knows no GPU"):
        seen()


def test_gpus_are_chosen_among_those_that_the_environment_leaves():
    chosen = seen(A, B, C, visible="2,0").only(["1"])
    assert chosen.gpus == (A,)
    assert chosen.variables()["CUDA_VISIBLE_DEVICES"] == "0"
    chosen = seen(A, B, C, visible="GPU-cc,1").only(["GPU-bbbbbbbb-0", "0"])
    assert chosen.gpus == (B, C)
    assert chosen.variables()["CUDA_VISIBLE_DEVICES"] == "1,GPU-cc"
    assert seen(A, B, C).only([2]).variables()["CUDA_VISIBLE_DEVICES"] == "2"


@pytest.mark.parametrize("word", ["2", "GPU-aaaaaaaa-0", "", "x", "-1", "\u0661"])
def test_a_gpu_that_is_not_seen_cannot_be_chosen_and_the_message_lists_the_others(word):
    with pytest.raises(LaunchError, match=r"there are 0 \(GPU-bbbbbbbb-0\), 1 \(GPU-cccccccc-0\)"):
        seen(A, B, C, visible="1,2").only([word])


def test_a_gpu_cannot_be_chosen_twice():
    with pytest.raises(LaunchError, match="named twice"):
        seen(A, B).only(["0", "GPU-aaaaaaaa-0"])


@pytest.mark.parametrize(
    ("visible", "order"), [("1", None), ("1", "FASTEST_FIRST"), (None, "FASTEST_FIRST")]
)
def test_an_index_among_different_gpus_is_refused_where_the_fastest_comes_first(visible, order):
    with pytest.raises(LaunchError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        seen(A, OLD, visible=visible, order=order)
    assert seen(A, B, visible=visible, order=order).gpus
    assert seen(A, OLD, visible="3", order="PCI_BUS_ID").gpus == (OLD,)
    assert seen(A, OLD, visible="GPU-d").gpus == (OLD,)
    assert seen(A, OLD).gpus == (A, OLD)


def test_of_mig_devices_cuda_sees_one_and_then_no_other_gpu():
    for visible in (None, "1", "MIG-1", "MIG-11111111-0,MIG-22222222-0"):
        selection = seen(A, MIG_ONE, MIG_TWO, visible=visible, order="PCI_BUS_ID")
        assert selection.gpus == (MIG_ONE,)
        assert selection.variables()["CUDA_VISIBLE_DEVICES"] == MIG_ONE.uuid
    assert seen(A, MIG_ONE, MIG_TWO, visible="MIG-2").gpus == (MIG_TWO,)
    assert seen(A, MIG_ONE, visible="0", order="PCI_BUS_ID").gpus == (A,)


def test_a_program_that_joins_a_region_sees_the_gpus_of_the_region():
    assert seen(A, B, C).only_of_region([C.uuid, A.uuid]).variables()["CUDA_VISIBLE_DEVICES"] == (
        "0,2"
    )
    for uuids in ((A.uuid, B.uuid, C.uuid), (), (None,)):
        kept = seen(A, B, C).only_of_region(uuids)
        assert kept.gpus == (A, B, C)
        assert "CUDA_VISIBLE_DEVICES" not in kept.variables()
    assert seen(A).only_of_region([B.uuid]).gpus == ()


def test_limits_are_for_all_gpus_for_some_or_for_the_others():
    two = seen(A, B)
    assert memory_limits(None, two) == (None, None)
    assert memory_limits("4GiB", two) == (4 * GIB, 4 * GIB)
    assert memory_limits(4096, two) == (4096, 4096)
    assert memory_limits({1: "1g"}, two) == (None, GIB)
    assert memory_limits({None: "2g", B.uuid: "unlimited"}, two) == (2 * GIB, None)
    assert memory_limits({"0": "1g", None: "2g"}, two) == (GIB, 2 * GIB)
    assert sm_limits("50%", two) == (50, 50)
    assert sm_limits({0: 30, None: 100}, two) == (30, None)


def test_a_percentage_is_of_the_gpus_own_memory():
    assert memory_limits("25%", seen(A, OLD)) == (20 * GIB, 4 * GIB)


@pytest.mark.parametrize("limit", ["6GB", "0", "0%", "-1", "", "much"])
def test_what_is_no_memory_limit_is_refused(limit):
    with pytest.raises(ValueError, match=r"size|negative|unlimited|powers"):
        memory_limits(limit, seen(A))


@pytest.mark.parametrize("limit", ["0", "101", "half", "50 %%", 0, 101])
def test_what_is_no_sm_limit_is_refused(limit):
    with pytest.raises(ValueError, match="1 to 100"):
        sm_limits(limit, seen(A))


def test_a_limit_of_a_gpu_that_is_not_seen_is_refused():
    with pytest.raises(LaunchError, match="there is no GPU '1' here"):
        memory_limits({1: "1g"}, seen(A))


def test_a_mig_device_has_memory_limits_and_no_sm_limit():
    selection = seen(MIG_ONE)
    assert memory_limits("50%", selection) == (5 * GIB // 2,)
    assert sm_limits("100", selection) == (None,)
    with pytest.raises(LaunchError, match=r"MIG-11111111-0, a MIG device.*leave out --sm"):
        sm_limits(50, selection)


def test_wsl_has_no_sm_limit(monkeypatch):
    release = "5.15.153.1-microsoft-standard-WSL2"
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    assert sm_limits(None, seen(A)) == (None,)
    with pytest.raises(LaunchError, match="on WSL"):
        sm_limits(50, seen(A))
