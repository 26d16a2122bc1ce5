"""An observation as text, and a stranger's text."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import seen_node
from support.agent_tasks import MONITOR
from support.stress import scaled

from libhamiregion.doctor import FindingKind, diagnose
from libhamiregion.lock import LockState
from libhamiregion.node import NvmlSample, NvmlState, Observation, Observer, node_processes
from libhamiregion.observation.driver import NvmlDevice, ProcessColumns
from libhamiregion.observation.evidence import LargeRegion, LostFile, NodeEvidence, RegionEvidence
from libhamiregion.observation.json import MAX_BYTES, DocumentError, from_json, to_json
from libhamiregion.observation.names import is_pod_uid
from libhamiregion.observation.processes import Entry, HostProcess, is_monitor
from libhamiregion.observation.rows import Join
from libhamiregion.observation.share import Allocation, share_of
from libhamiregion.observation.without_region import explained
from libhamiregion.region_set import read_whole
from libhamiregion.testing import FakeNode
from libhamiregion.units import limits_from_environment

pytestmark = pytest.mark.root
GPU = "GPU-5d9a1b54-3c1c-4e9e-8f24-0e6a0a5c2b11"


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Iterator[Observation]:
    """Two containers with a process each, one without a region, and a driver's sample."""
    directory = tmp_path_factory.mktemp("node")
    with FakeNode(directory, containers=2, processes=1) as fake:
        fake.add("train", pod="bert-0", namespace="research", region=False)
        (process,) = fake.containers[0].processes
        with fake.node() as node:
            found = Observer(node).observe()
            columns = ProcessColumns(
                0, GPU, (process.pid, 1), (1 << 30, 1), (50, 0), (1, 0), (0, 0), (0, 0)
            )
            device = NvmlDevice(0, GPU, "A100", NvmlState.OK, 80 << 30, 1 << 30)
            sample = NvmlSample(
                1, NvmlState.OK, None, "570.0", (device,), (columns,), True, found.began_s
            )
            variables = {"CUDA_DEVICE_MEMORY_LIMIT_1": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"}
            limits = limits_from_environment(variables)
            about = {"share": share_of(variables), "limits": limits}
            given = Allocation("uid", "main", "nvidia.com/gpu", (GPU,), **about)
            evidence = evidence_of(found)
            yield attrs.evolve(found, sample=sample, evidence=evidence, allocations=(given,))


def evidence_of(found: Observation) -> NodeEvidence:
    """Evidence with something of each kind, about two regions."""
    (first, second), pid = found.containers, found.table.processes.pid[0]
    assert first.identity is not None
    assert second.region is not None
    lock = LockState(
        held=True,
        owner_pid=pid,
        owner_host_pid=pid,
        owner_life="alive",
        by_library=False,
        semaphore_value=0,
        damaged=False,
        waiters=1,
        postinit_value=1,
    )
    region = RegionEvidence(lock, 3, 1, {0: 7}, {pid: 9}, (pid,), (pid,), (pid,), True, 1 << 20)
    large = LargeRegion(read_whole(second.region), found.proved().proved[1])
    lost = LostFile(first.identity, "/tmp/a.cache", True, pid, found.missing[0], 100)
    return NodeEvidence({0: region}, {1: large}, (lost,), frozenset({1}), True)


def use(seen: Observation) -> list[object]:
    """All that is made of an observation."""
    join = Join(seen)
    return [
        node_processes(seen),
        *(each for each in seen.details()),
        join.figures("memory_used_bytes"),
        list(join.device_sums("memory_used_bytes").sums),
        [each.pod_name for each in seen.all_containers],
        diagnose(seen),
        seen.allocations,
    ]


def test_what_is_made_of_a_document_is_what_was_made_of_its_node(seen):
    again = from_json(to_json(seen))
    assert use(again) == use(seen)
    kinds = {FindingKind.LOCK_STUCK, FindingKind.SEQLOCK_STUCK, FindingKind.SLOT_MOVED}
    assert {each.kind for each in diagnose(again)} >= kinds
    assert again.evidence is not None
    assert seen.evidence is not None
    assert attrs.evolve(again.evidence, large={}) == attrs.evolve(seen.evidence, large={})
    assert to_json(again) == to_json(seen)
    for rows in ("regions", "devices", "processes", "usages"):
        of, now = getattr(seen.table, rows), getattr(again.table, rows)
        assert [list(getattr(now, each)) for each in of.columns] == [
            list(getattr(of, each)) for each in of.columns
        ]


def test_the_text_is_ascii_and_large_numbers_are_text(seen):
    document = json.loads(to_json(seen))
    document["snapshot"]["table"]["devices"]["memory_used_bytes"][0] = str((1 << 64) - 1)
    document["containers"][0]["directory_name"] = "\udc80"
    again = from_json(json.dumps(document))
    assert again.table.devices.memory_used_bytes[0] == (1 << 64) - 1
    assert again.containers[0].name == "\udc80"
    text = to_json(again)
    assert text.isascii()
    assert json.loads(text)["snapshot"]["table"]["devices"]["memory_used_bytes"][0] == str(
        (1 << 64) - 1
    )


def test_fields_that_are_not_known_are_left_alone(seen):
    document = json.loads(to_json(seen))
    document["later"] = document["containers"][0]["later"] = document["sample"]["later"] = [1]
    document["snapshot"]["table"]["usages"]["later"] = [0] * len(
        document["snapshot"]["table"]["usages"]["process"]
    )
    assert use(from_json(json.dumps(document))) == use(seen)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "nonsense", "[" * 200_000, '{"schema": "hamiregion/observation/2"}'),
        '{"schema": "hamiregion/observation/1"}',
        b"\xff",
    ],
)
def test_a_text_that_is_none_is_refused(text):
    with pytest.raises(DocumentError):
        from_json(text)


def test_a_text_that_is_too_long_is_not_read():
    with pytest.raises(DocumentError, match="64 MiB"):
        from_json(" " * (MAX_BYTES + 1))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        *(("regions", name, 1 << 40) for name in ("device_rows", "process_count", "layout")),
        *(("devices", name, 99) for name in ("region", "device")),
        *(("processes", name, 99) for name in ("region", "first_usage")),
        *(("usages", name, 99) for name in ("process", "device")),
        ("regions", "code", 1),
        ("devices", "memory_used_bytes", -1),
    ],
)
def test_rows_that_there_are_not_are_refused(seen, table, column, value):
    document = json.loads(to_json(seen))
    document["snapshot"]["table"][table][column][0] = value
    with pytest.raises(DocumentError):
        from_json(json.dumps(document))


_WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(([], {}, [[]], [0, 0], "9" * 30, -1, 1 << 31, "alive", GPU)),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value in a document."""
    yield path
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from places(each, (*path, key))


# ---- without names ----


def test_a_redacted_document_has_the_findings_of_the_whole_one():
    unlimited = seen_node.seen(seen_node.entry(1, share=seen_node.SHARE))
    unlimited = attrs.evolve(unlimited, snapshot=explained(unlimited))
    (found,) = diagnose(from_json(to_json(unlimited, redact=True)))
    assert found.kind is FindingKind.SHARE_NOT_LIMITED


def test_what_findings_depend_on_is_not_redacted():
    def read(entry: Entry, **facts: Any) -> tuple[Entry, HostProcess]:
        changed = attrs.evolve(entry.process, **facts) if entry.process else None
        whole = seen_node.seen(attrs.evolve(entry, process=changed))
        text = to_json(whole, redact=True)
        assert not [each for each in ("secret", "GPU-a", "MIG-a", seen_node.POD) if each in text]
        (redacted,) = from_json(text).processes.entries.values()
        assert redacted.process is not None
        return redacted, redacted.process

    entry = seen_node.entry(1)
    assert not is_monitor(read(entry, command=f"/bin/secret {MONITOR}")[1])
    assert is_monitor(read(entry, command=f"/secret/{MONITOR} --secret")[1])
    assert is_pod_uid(str(read(entry)[1].pod_uid))
    reordered = attrs.evolve(entry, visible_devices="1, GPU-a,MIG-a,-1,secret")
    assert read(reordered)[0].visible_devices == "1,GPU-1,MIG-2,-1,GPU-3"


_CHANGES = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.booleans(), _WORDS), min_size=1, max_size=3
)


@settings(max_examples=scaled(8_000), suppress_health_check=list(HealthCheck))
@given(changes=_CHANGES)
def test_any_change_gives_an_error_or_an_observation_that_can_be_used(seen, changes):
    document = json.loads(to_json(seen))
    for number, is_removed, value in changes:
        every = [path for path in places(document) if path]
        *above, last = every[number % len(every)]
        at = document
        for key in above:
            at = at[key]
        if is_removed:
            del at[last]
        else:
            at[last] = copy.deepcopy(value)
    try:
        found = from_json(json.dumps(document))
    except DocumentError:
        return
    if found.states is not None and found.processes_error is None:
        use(found)
    to_json(found)
    to_json(found, redact=True)
