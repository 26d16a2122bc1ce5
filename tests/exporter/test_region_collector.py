"""RegionCollector in a registry of prometheus-client gives what the exporter renders itself."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from fake_nvml.scenes import CARD, MIB, MIG
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from support.exposition import Exposition, parsed
from support.golden_regions import NAMES
from support.node_scene import NodeScene

from libhamiregion import RegionClosed
from libhamiregion.exporter import CONTENT_TYPE, FAMILIES, NodeExporter, RegionCollector
from libhamiregion.node import NvmlSampler

# One of each layout, and one whose lock a dead process holds.
SHOWN = [name for name in NAMES if "many" in name] + ["1.2-owner-killed-holding-lock"]

# These tell of the scrapes themselves, or count seconds: no two scrapes agree on them.
MOVING = {
    "hamiregion_scrape_duration_seconds_sum",
    "hamiregion_refresh_timestamp_seconds",
    "hamiregion_collector_duration_seconds",
    "hamiregion_scrape_duration_seconds_count",
    "hami_container_last_kernel_elapsed_seconds",
    "Device_last_kernel_of_container",
    # Of the region whose lock is held.
    "hamiregion_lock_same_owner_seconds",
}


@pytest.fixture
def exporter(files, fake_driver) -> Iterator[NodeExporter]:
    """A node with all that can be shown without processes: goldens, a gap, GPUs, MIG, an agent."""
    for name in SHOWN:
        files.golden(name)
    files.container("waiting", region=False)
    files.container("mig", uuids=["MIG-aaaaaaaa-0000-0000-0000-000000000000"])
    fake_driver.play(
        CARD,
        "sensors 0 41 187500 3 1",
        *MIG,
        f"process 0 compute 4194303 {300 * MIB}",
        "sample 0 4194303 100 61 22 3 4",
    )
    with (
        files.open() as node,
        NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler,
    ):
        yield NodeExporter(
            node,
            sampler=sampler,
            node_name='node"\\1',
            legacy=True,
            max_age_s=3600,
            counters=lambda: {"feedback_writes": 3, "feedback_paused": 1},
        )


def settled(exposition: Exposition) -> dict[object, float | None]:
    """All samples; of those that move only that they are there."""
    return {key: None if key[0] in MOVING else value for key, value in exposition.samples.items()}


def test_both_give_the_same_samples_in_prometheus_own_format(exporter):
    registry = CollectorRegistry()
    registry.register(RegionCollector(exporter))
    ours, theirs = parsed(exporter.render()), parsed(generate_latest(registry))
    assert settled(ours) == settled(theirs)
    assert ours.types == theirs.types
    assert ours.helps == theirs.helps
    assert len(ours.samples) > 300


def test_nearly_every_family_of_the_catalogue_is_in_that_comparison(exporter):
    """So that what it proves is proved of all; the rest needs processes and has its own tests."""
    shown = {name.removesuffix("_sum") for name in parsed(exporter.render()).names}
    # Other processes of this machine may take more time than they get.
    absent = {family.name for family in FAMILIES} - shown | {"hamiregion_observation_gaps"}
    assert {name for name in absent if not name.startswith("hamiregion_process_")} == {
        "hamiregion_container_memory_refusals_total",
        "hamiregion_container_processes_folded",
        "hamiregion_claim_info",
        "hamiregion_driver_container_memory_used_bytes",
        "hamiregion_driver_container_sm_utilization_ratio",
        "hamiregion_observation_gaps",
        "hamiregion_unnamed_device_memory_limit_bytes",
    }


def test_a_collector_sits_beside_others_and_is_described_without_being_asked(exporter):
    registry = CollectorRegistry()
    registry.register(RegionCollector(exporter))
    assert exporter._observer.node.containers == ()
    described = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in RegionCollector(exporter).describe()
    }
    assert described == {family.name for family in FAMILIES}
    own = Gauge("jobs_waiting", "Of another exporter.", registry=registry)
    own.set(4)
    found = parsed(generate_latest(registry))
    assert found.value("jobs_waiting") == 4
    assert found.value("hamiregion_containers", region="present") == len(SHOWN) + 1
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(RegionCollector(exporter))


def test_a_collector_describes_former_names_only_where_they_are_exported(tmp_path):
    with NodeScene(tmp_path).open() as node:
        names = {metric.name for metric in RegionCollector(NodeExporter(node)).describe()}
    assert "MigInfo" not in names
    assert "hami_mig_device_info" in names


def test_only_what_is_asked_for_is_rendered(exporter):
    some = RegionCollector(exporter, ["hami_vgpu_memory_used_bytes", "hamiregion_errors_total"])
    for metrics in (some.collect(), some.describe()):
        assert [metric.name for metric in metrics] == [
            "hami_vgpu_memory_used_bytes",
            "hamiregion_errors",
        ]
    names = {"hami_vgpu_memory_used_bytes", "hamiregion_errors_total"}
    assert parsed(exporter.render(names=names)).names == names
    assert {series.name for series in exporter.gather(names)} == names
    assert len(parsed(exporter.render()).names) > 30


def test_the_content_type_is_that_of_the_format():
    assert CONTENT_TYPE == CONTENT_TYPE_PLAIN_0_0_4


def test_counters_only_grow_from_scrape_to_scrape(exporter):
    scrapes = [parsed(exporter.render()) for _ in range(5)]
    counters = {name for name, kind in scrapes[0].types.items() if kind == "counter"}
    assert len(counters) >= 3
    for before, after in pairwise(scrapes):
        for key, value in before.samples.items():
            if key[0].removesuffix("_total") in counters:
                assert after.samples[key] >= value
        count = "hamiregion_scrape_duration_seconds_count"
        assert after.value(count) == before.value(count) + 1


def test_a_scrape_after_the_nodes_end_says_so_and_is_counted(exporter):
    exporter.render()
    exporter._observer.node.close()
    with pytest.raises(RegionClosed):
        exporter.render()
    with pytest.raises(RegionClosed):
        exporter.gather()


def test_the_times_of_the_exporter_itself_are_told(exporter):
    before_s = time.time()
    exporter.render()
    found = parsed(exporter.render())
    for stage in ("containers", "processes", "doctor"):
        told_s = found.value("hamiregion_refresh_timestamp_seconds", stage=stage)
        assert before_s <= told_s <= time.time()
        assert found.value("hamiregion_errors_total", stage=stage) == 0
    assert found.value("hamiregion_collector_duration_seconds", collector="processes") > 0
    assert found.value("hamiregion_scrape_duration_seconds_sum") > 0
    assert found.types["hamiregion_scrape_duration_seconds"] == "summary"


@pytest.mark.parametrize("names", [{"typo"}, ["hamiregion_up", "hamiregion_containers"], "typo"])
def test_a_name_of_no_metric_is_an_error(exporter, names):
    with pytest.raises(ValueError, match="no metric is called"):
        exporter.render(names=names)
    with pytest.raises(ValueError, match="no metric is called"):
        RegionCollector(exporter, names)
