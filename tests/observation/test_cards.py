"""What the containers of a node may use of each card together."""

import attrs
import pytest
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_A, MIG_B, OTHER, SECOND
from support.device_checkpoint import answer, checkpoint
from support.device_checkpoint import entry as given
from support.exposition import parsed
from support.node_scene import NodeScene
from support.seen_node import OTHER as OTHER_ID
from support.seen_node import POD, entry, seen

from libhamiregion.exporter import NodeExporter
from libhamiregion.node import NvmlSampler, Observer
from libhamiregion.observation.cards import Card, MemoryChange, beyond_cards, cards
from libhamiregion.observation.json import from_json, to_json
from libhamiregion.observation.model import LeftDirectory
from libhamiregion.observation.share import Allocation, share_of
from libhamiregion.observation.without_region import explained
from libhamiregion.units import GIB, limits_from_environment


def sums(scene: NodeScene, sampler: NvmlSampler | None) -> dict[str | None, Card]:
    with scene.open() as node:
        return cards(Observer(node, sampler=sampler).observe())


def test_limits_are_summed_up_and_unlimited_is_the_whole_card(files, fake_driver, nvml_sampler):
    files.container("a", uuids=[GPU, OTHER], memory_limits=["6GiB", None], sm_limits=[30, None])
    files.container("b", uuids=[GPU], memory_limits=["80GiB"], sm_limits=[60])
    fake_driver.play(CARD, SECOND)
    found = sums(files, nvml_sampler)
    assert list(found) == [GPU, OTHER]
    first, second = found.values()
    assert (first.devices, first.memory_limits_bytes, first.sm_limits_percent) == (2, 86 * GIB, 90)
    assert (first.memory_used_bytes, first.is_overcommitted) == (5000 * MIB, True)
    assert (second.memory_limits_bytes, second.sm_limits_percent) == (40960 * MIB, 100)
    assert not second.is_overcommitted


def test_a_mig_device_is_a_card_of_its_own(files, fake_driver, nvml_sampler):
    files.container("a", uuids=[MIG_A], memory_limits=["1GiB"])
    fake_driver.play(CARD, *MIG)
    found = sums(files, nvml_sampler)
    assert list(found) == [GPU, MIG_A, MIG_B]
    assert (found[MIG_A].index, found[MIG_A].devices, found[MIG_B].devices) == (1, 1, 0)
    assert (found[MIG_B].memory_limits_bytes, found[MIG_B].sm_limits_percent) == (0, 0)


def test_devices_whose_card_is_not_known_are_counted_apart(files, fake_driver, nvml_sampler):
    files.container("a", uuids=[OTHER], memory_limits=["1GiB"])
    files.container("b", uuids=(), memory_limits=["2GiB"], sm_limits=[20])
    fake_driver.play(CARD)
    found = sums(files, nvml_sampler)
    assert (found[GPU].devices, found[None].devices) == (0, 2)
    assert (found[None].memory_limits_bytes, found[None].sm_limits_percent) == (3 * GIB, 120)
    files.container("c", uuids=(), memory_limits=[None], sm_limits=[10])
    assert sums(files, None)[None].memory_limits_bytes is None


def test_kubelet_knows_the_card_that_a_region_does_not_name_yet(
    tmp_path, files, fake_driver, nvml_sampler
):
    new = files.container("new", uuids=(), memory_limits=["2GiB"], sm_limits=[20])
    response = answer({"NVIDIA_VISIBLE_DEVICES": GPU, "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"})
    path = tmp_path / "checkpoint"
    path.write_text(checkpoint(given(new.pod_uid, "new", "nvidia.com/gpu", [], response)))
    fake_driver.play(CARD)
    with files.open(allocations=path) as node:
        found = cards(Observer(node, sampler=nvml_sampler).observe())
    assert list(found) == [GPU]
    assert (found[GPU].memory_limits_bytes, found[GPU].sm_limits_percent) == (2 * GIB, 20)


@pytest.mark.parametrize(
    ("variables", "limits"),
    [
        pytest.param({}, (24 * GIB, 100), id="whole"),
        pytest.param(
            {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"},
            (4 * GIB, 30),
            id="share",
        ),
    ],
)
def test_containers_without_a_region_count_as_kubelet_has_noted(variables, limits):
    share = share_of(variables)
    read = limits_from_environment(variables, hami_version="2.11") if variables else None
    note = Allocation(POD, "main", "nvidia.com/gpu", ("GPU-a",), share, limits=read)

    observation = seen(entry(1), listed=(), allocations=(note,))
    observation = attrs.evolve(observation, snapshot=explained(observation))
    for each in (observation, from_json(to_json(observation))):
        found = cards(each)["GPU-a"]
        assert (found.devices, found.memory_limits_bytes, found.sm_limits_percent) == (1, *limits)
    left = tuple(LeftDirectory(each, 1.0) for each in observation.missing)
    assert cards(attrs.evolve(observation, left=left))["GPU-a"].devices == 0


def test_the_exporter_has_the_sums_by_gpu(files, fake_driver, nvml_sampler):
    files.container("a", uuids=[GPU], memory_limits=["6GiB"], sm_limits=[30])
    fake_driver.play(CARD)
    with files.open() as node:
        found = parsed(NodeExporter(node, sampler=nvml_sampler, max_age_s=0.0).render())
    name = "hamiregion_gpu_"
    assert found.value(f"{name}memory_limits_bytes", device_uuid=GPU) == 6 * GIB
    assert found.value(f"{name}sm_limits_ratio", device_uuid=GPU) == 0.3
    assert found.value(f"{name}container_devices", device_uuid=GPU) == 1


# ---- changes -------------------------------------------------------------------------------------


def refused(
    scene: NodeScene, sampler: NvmlSampler | None, *after: int | None, uuid: str = GPU
) -> list[int]:
    """The numbers of the containers whose new limit, in GiB, is refused; each has 30 GiB now."""
    changes = [
        MemoryChange((1, number), 0, uuid, 30 * GIB, None if limit is None else limit * GIB)
        for number, limit in enumerate(after)
    ]
    with scene.open() as node:
        found = beyond_cards(Observer(node, sampler=sampler).observe(), changes)
    return [each.change.file_id[1] for each in found]


@pytest.fixture
def pair(files, fake_driver) -> NodeScene:
    """Two containers with 30 GiB each on a GPU of 80 GiB."""
    fake_driver.play(CARD)
    for name in "ab":
        files.container(name, uuids=[GPU], memory_limits=["30GiB"])
    return files


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param([50], [], id="full"),
        pytest.param([51], [0], id="too-much"),
        pytest.param([51, 29], [], id="the-other-is-lowered"),
        pytest.param([41, 41], [0, 1], id="both"),
        pytest.param([None], [0], id="unlimited-is-the-whole-card"),
        pytest.param([31, 60], [0, 1], id="one-alone-would-fit"),
        pytest.param([60, 29], [0], id="only-the-raise"),
    ],
)
def test_a_raise_is_refused_if_the_limits_of_its_gpu_exceed_the_card(
    pair, nvml_sampler, after, expected
):
    assert refused(pair, nvml_sampler, *after) == expected
    # A card that the driver does not list refuses nothing.
    assert refused(pair, nvml_sampler, *after, uuid=OTHER) == []
    assert refused(pair, None, *after) == []


def test_lowering_is_never_refused(pair, fake_driver, nvml_sampler):
    fake_driver.play(CARD.replace(str(81920 * MIB), str(8192 * MIB)))
    assert refused(pair, nvml_sampler, 29) == []
    assert refused(pair, nvml_sampler, 29, 31) == [1]


def test_a_card_whose_memory_hami_scales_refuses_nothing():
    raised = [MemoryChange((1, 1), 0, "GPU-a", 1, 100 * GIB)]
    scaled = share_of({"CUDA_OVERSUBSCRIBE": "true"})
    mine, other = entry(1, share=scaled), entry(2, share=scaled, container=OTHER_ID)
    assert beyond_cards(seen(mine, other, listed=(1, 2)), raised) == []
    # One of several containers may have set the variable for itself.
    for seen_now in (seen(mine, entry(2, container=OTHER_ID), listed=(1, 2)), seen()):
        assert [each.change for each in beyond_cards(seen_now, raised)] == raised
