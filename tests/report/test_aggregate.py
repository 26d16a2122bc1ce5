"""The figures of a report, against what a plain reading of the same day comes to."""

import contextlib
import sqlite3
from collections import defaultdict
from pathlib import Path

import attrs
import pytest
from support.recorded_day import DAY_S, GAP_S, GIB, MIB, MIDNIGHT_S, looks, record, tenants

from libhamiregion.node import Selector
from libhamiregion.report import (
    Allocation,
    Gpu,
    Recording,
    RecordingWriter,
    Report,
    Sample,
    Timeline,
    Usage,
    make_report,
)
from libhamiregion.report.models import LEVELS

INTERVAL_S = 60
SINCE_MS = MIDNIGHT_S * 1000
UNTIL_MS = SINCE_MS + DAY_S * 1000
HOUR_MS = 3_600_000
POINTS = 48
TRAIN = Allocation("research", "bert-0", "train", "0b5c", 0, "GPU-a")


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("day") / "node.db"
    record(path, tenants(), interval_s=INTERVAL_S)
    return path


@pytest.fixture(scope="module")
def report(day) -> Report:
    return of_day(day, points=POINTS, by="namespace")


def of_day(day: Path, since_ms: int = SINCE_MS, until_ms: int = UNTIL_MS, **more: object) -> Report:
    with Recording(day) as recording:
        return make_report([recording], since_ms, until_ms, **more)  # type: ignore[arg-type]


def hours(seconds: float) -> float:
    return pytest.approx(seconds / 3600)  # type: ignore[return-value]


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[-(-round(share * len(values) * 1000) // 1000) - 1]


@attrs.define
class Plain:
    """The sums of one allocation, kept the slow way: one value per minute."""

    used: list[int] = attrs.field(factory=list)
    seconds: list[int] = attrs.field(factory=list)
    limit: int = 0
    busy: float = 0
    allocated: float = 0
    unused: int = 0
    unused_limit: int = 0
    idle: int = 0
    leftover: int = 0
    longest: int = 0
    stretch: int = 0
    last_used: int | None = None

    def add(self, second: int, sample: Sample) -> None:
        used, sm = sample.memory_used_bytes, sample.sm_percent or 0
        # The gap begins one interval after the last look before it, on a look that was missed.
        if second == GAP_S[1]:
            self.stretch = 0
        self.seconds.append(second)
        self.used.append(used)
        self.limit += (sample.memory_limit_bytes or 0) * INTERVAL_S
        self.busy += min(sm, 100) / 100 * INTERVAL_S
        share = (sample.sm_limit_percent or 0) / 100
        if share == 1 and sample.memory_limit_bytes is not None:
            share = sample.memory_limit_bytes / (80 * GIB)
        self.allocated += share * INTERVAL_S
        if used:
            self.stretch = 0
            self.last_used = second + INTERVAL_S
            self.idle += INTERVAL_S * (sm == 0)
            self.leftover += INTERVAL_S * (sample.processes == 0)
        else:
            self.unused += INTERVAL_S
            self.unused_limit += (sample.memory_limit_bytes or 0) * INTERVAL_S
            self.stretch += INTERVAL_S
            self.longest = max(self.longest, self.stretch)


@pytest.fixture(scope="module")
def plain() -> dict[Allocation, Plain]:
    found: dict[Allocation, Plain] = defaultdict(Plain)
    for second, samples in looks(tenants(), interval_s=INTERVAL_S):
        for allocation, sample in samples.items():
            found[allocation].add(second, sample)
    return found


def test_figures_are_those_of_a_plain_reading(report, plain):
    assert len(report.allocations) == len(plain) == 29
    in_order = sorted(plain.items(), key=lambda each: attrs.astuple(each[0]))
    for row, (of, own) in zip(report.allocations, in_order, strict=True):
        assert (row.namespace, row.pod, row.container) == (of.namespace, of.pod, of.container)
        held = len(own.used) * INTERVAL_S
        assert (row.observed_s, row.device_hours) == (held, hours(held))
        assert row.memory_peak_bytes == max(own.used)
        assert row.peak_at_ms == (MIDNIGHT_S + own.seconds[own.used.index(max(own.used))]) * 1000
        assert row.memory_average_bytes == sum(own.used) // len(own.used)
        assert row.used_gib_hours == hours(sum(own.used) * INTERVAL_S / GIB)
        assert row.limit_gib_hours == hours(own.limit / GIB)
        for value, share in ((row.memory_p95_bytes, 0.95), (row.memory_p99_bytes, 0.99)):
            exact = percentile(own.used, share)
            assert exact <= value <= exact * 1.004
        assert row.first_seen_ms == (MIDNIGHT_S + own.seconds[0]) * 1000
        assert row.last_seen_ms == (MIDNIGHT_S + own.seconds[-1] + INTERVAL_S) * 1000
        assert row.allocated_gpu_hours == hours(own.allocated)
        assert row.busy_gpu_hours == hours(own.busy)
        assert row.driver_busy_gpu_hours is None
        assert row.loaded_idle_hours == hours(own.idle)
        assert row.leftover_hours == hours(own.leftover)
        assert row.unused_hours == hours(own.unused)
        assert row.unused_gib_hours == hours(own.unused_limit / GIB)
        assert row.unused_longest_hours == hours(own.longest)
        last = None if own.last_used is None else (MIDNIGHT_S + own.last_used) * 1000
        assert row.last_used_ms == last
        at_end = own.seconds[-1] == DAY_S - INTERVAL_S and own.used[-1] == 0
        since_ms = UNTIL_MS - own.stretch * 1000 if at_end else None
        assert row.unused_since_ms == since_ms


def sums_of(plain: dict[Allocation, Plain], namespace: str | None = None) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for of, own in plain.items():
        if namespace in {None, of.namespace}:
            for second, used in zip(own.seconds, own.used, strict=True):
                found[second] += used
    return found


def test_groups_have_the_peak_of_the_sum_and_not_the_sum_of_peaks(report, plain):
    total = report.total
    assert total is not None
    names = ["batch", "inference", "notebooks", "research"]
    assert [row.namespace for row in report.rows] == names
    for row in (*report.rows, total):
        sums = sums_of(plain, row.namespace)
        members = [own for of, own in plain.items() if row.namespace in {None, of.namespace}]
        assert row.allocations == len(members)
        assert row.memory_peak_bytes == max(sums.values())
        assert row.memory_average_bytes == sum(sums.values()) // len(sums)
        exact = percentile(list(sums.values()), 0.95)
        assert exact <= row.memory_p95_bytes <= exact * 1.004
        assert row.device_hours == hours(sum(len(own.used) * INTERVAL_S for own in members))
        assert row.busy_gpu_hours == hours(sum(own.busy for own in members))
        assert row.unused_gib_hours == hours(sum(own.unused_limit for own in members) / GIB)
    assert total.memory_limit_bytes == max(
        sum(each.limit_bytes or 0 for each in tenants() if each.from_s <= second < each.to_s)
        for second in range(0, DAY_S, INTERVAL_S)
    )


@pytest.mark.slow
def test_rows_of_every_level_and_parts_of_a_day_add_up_to_the_same(day, report):
    total = report.total
    step_ms = (UNTIL_MS - SINCE_MS) // 7
    parts = [
        of_day(day, since_ms, min(since_ms + step_ms, UNTIL_MS)).total
        for since_ms in range(SINCE_MS, UNTIL_MS, step_ms)
    ]
    for by in LEVELS:
        rows = of_day(day, by=by).rows
        assert sum(row.allocations for row in rows) == total.allocations == 29
        assert len(rows) == {"namespace": 4, "pod": 29, "container": 29, "device": 8, "node": 1}[by]
        for summed in (rows, [part for part in parts if part is not None]):
            for name in ("used_gib_hours", "busy_gpu_hours", "device_hours"):
                assert sum(getattr(row, name) for row in summed) == pytest.approx(
                    getattr(total, name)
                )


def test_what_was_not_recorded_is_a_gap_and_nothing_else(day, report):
    gap = tuple((MIDNIGHT_S + second) * 1000 for second in GAP_S)
    length = GAP_S[1] - GAP_S[0]
    assert (report.gaps, report.gap_count) == ((gap,), 1)
    assert report.recorded_ratio == 1 - length / DAY_S
    longer = of_day(day, SINCE_MS - HOUR_MS, UNTIL_MS + 2 * HOUR_MS)
    assert longer.gaps == (
        (SINCE_MS - HOUR_MS, SINCE_MS),
        gap,
        (UNTIL_MS, UNTIL_MS + 2 * HOUR_MS),
    )
    assert longer.total.last_seen_ms == UNTIL_MS
    assert longer.total.used_gib_hours == pytest.approx(report.total.used_gib_hours)  # type: ignore[union-attr]
    nothing = of_day(day, UNTIL_MS + 1, UNTIL_MS + 2)
    assert nothing.total is None
    assert nothing.rows == nothing.devices == ()
    assert nothing.recorded_ratio == 0


def test_timelines_show_peaks_averages_and_gaps(report, plain):
    timeline = report.total.timeline
    assert isinstance(timeline, Timeline)
    assert timeline.step_ms == DAY_S * 1000 // POINTS
    sums = sums_of(plain)
    busy: dict[int, float] = defaultdict(float)
    for second, samples in looks(tenants(), interval_s=INTERVAL_S):
        busy[second] = sum(sample.sm_percent or 0 for sample in samples.values()) / 100
    step_s = DAY_S // POINTS
    for number in range(POINTS):
        seconds = [
            second
            for second in range(number * step_s, (number + 1) * step_s, INTERVAL_S)
            if second in sums
        ]
        if not seconds:
            assert timeline.memory_peak_bytes[number] is timeline.busy_gpus[number] is None
            continue
        values = [sums[second] for second in seconds]
        assert timeline.memory_peak_bytes[number] == max(values)
        assert timeline.memory_used_bytes[number] == round(sum(values) / len(values))
        assert timeline.busy_gpus[number] == pytest.approx(
            sum(busy[second] for second in seconds) / len(seconds), abs=1e-4
        )


def test_a_selector_chooses(day):
    rows = of_day(day, select=Selector(namespace="note*", pod="*-a*")).rows
    assert [row.pod for row in rows] == ["jupyter-ada", "jupyter-alan"]
    assert len(of_day(day, select=Selector(device="GPU-0*")).rows) == 1
    assert of_day(day, select=Selector(device="1")).rows == ()


def test_a_report_needs_time(day):
    with pytest.raises(ValueError, match="beginning before its end"):
        of_day(day, UNTIL_MS, UNTIL_MS)


# ---- small histories, a sample a minute ----------------------------------------------------------


def minutes(path: Path, *looks: tuple[int, dict[Allocation, Sample]], **more: object) -> Report:
    """Record each look for so many minutes, and report on it."""
    with RecordingWriter(path, interval_s=60) as writer:
        minute = 0
        for count, samples in looks:
            for _ in range(count):
                writer.write(samples, at_ms=SINCE_MS + minute * 60_000)
                minute += 1
    return of_day(path, **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "node.db"


def test_limits_are_suggested_from_the_99th_percentile(report):
    suggested = {row.pod: (row.advice, row.suggested_limit_bytes) for row in report.allocations}
    # 11 GiB x 1.1 = 12.1, and up to the next quarter.
    assert suggested["bert-sweep-7d9f4"] == ("lower", int(12.25 * GIB))
    assert suggested["jupyter-emmy"] == ("unused", None)
    assert suggested["render-01"] == ("too_little_seen", None)
    assert suggested["tabular-rnn"] == ("raise", 17 * GIB)
    assert suggested["legacy-etl"][0] == "limit"


def test_no_suggestion_is_below_the_peak(path):
    """A short peak that the percentile does not see."""
    two, seven = ({TRAIN: Sample(used * GIB, 8 * GIB)} for used in (2, 7))
    (row,) = minutes(path, (300, two), (1, seven), (299, two)).rows
    assert row.memory_p99_bytes == 2 * GIB
    assert (row.advice, row.suggested_limit_bytes) == ("lower", 7 * GIB)
    (row,) = of_day(path, headroom=3.1).rows
    assert (row.advice, row.suggested_limit_bytes) == ("raise", int(8.25 * GIB))


def test_a_device_whose_uuid_becomes_known_is_one_row_with_all_that_was_used(path):
    before = {attrs.evolve(TRAIN, device_uuid=None): Sample(8 * GIB, 16 * GIB)}
    whole = minutes(path, (60, before), (60, {TRAIN: Sample(GIB, 16 * GIB)}), by="device")
    for report, held in ((whole, 2), (of_day(path, until_ms=SINCE_MS + HOUR_MS), 1)):
        (row,), (device,) = report.allocations, report.devices
        assert device.device_uuid == row.device_uuid == "GPU-a"
        assert row.device_hours == pytest.approx(held)
        for field in ("observed_s", "device_hours", "used_gib_hours", "memory_average_bytes"):
            assert getattr(device, field) == getattr(row, field)
        assert device.memory_peak_bytes == 8 * GIB


def test_utilisation_belongs_to_what_is_there_wherever_a_report_begins(path):
    """The uuid is known, then not for a few looks, then known again."""
    known = {TRAIN: Sample(GIB, sm_percent=80)}
    unknown = {attrs.evolve(TRAIN, device_uuid=None): Sample(GIB, sm_percent=0)}
    (whole,) = minutes(path, (5, known), (3, unknown), (42, known)).rows
    assert whole.busy_gpu_hours == pytest.approx(47 / 60 * 0.8)
    (part,) = of_day(path, SINCE_MS + 600_000).rows
    assert part.busy_gpu_hours == pytest.approx(40 / 60 * 0.8)


def test_memory_counts_against_limits_while_there_is_one(path):
    report = minutes(
        path, (60, {TRAIN: Sample(GIB, 2 * GIB)}), (60, {TRAIN: Sample(60 * GIB)}), by="namespace"
    )
    for row in (*report.rows, *report.allocations, report.total):
        assert row.limited_used_gib_hours == pytest.approx(1)
        assert row.used_gib_hours == pytest.approx(61)
        assert row.limit_gib_hours == pytest.approx(2)


def test_a_group_is_unused_since_all_that_is_there_is(tmp_path):
    idle, ended, busy = (attrs.evolve(TRAIN, pod_uid=uid, pod=uid) for uid in "123")
    nothing, some = Sample(0, GIB), Sample(GIB, GIB)
    report = minutes(
        tmp_path / "a.db",
        (60, {idle: nothing}),
        (60, {idle: nothing, ended: some}),
        (60, {idle: nothing}),
        by="namespace",
    )
    assert [row.unused_since_ms for row in report.allocations] == [SINCE_MS, None]
    # Until it ended, the other one used memory.
    assert [row.unused_since_ms for row in report.rows] == [SINCE_MS + 2 * HOUR_MS]
    assert report.rows[0].unused_longest_hours == pytest.approx(1)
    both = (60, {idle: nothing, ended: some})
    for number, last in enumerate(({idle: nothing, busy: some}, {busy: some})):
        report = minutes(tmp_path / f"{number}.db", both, (60, last), by="namespace")
        assert report.rows[0].unused_since_ms is None
    # One that is unused takes over from another: the time has no break.
    handed = minutes(
        tmp_path / "b.db", (60, {idle: nothing}), (60, {ended: nothing}), by="namespace"
    )
    assert handed.rows[0].unused_longest_hours == pytest.approx(2)


def test_a_container_counts_as_one_gpu_at_most_also_in_its_groups(path):
    """Utilisation is a sum over processes, and can pass 100."""
    other = attrs.evolve(TRAIN, pod_uid="2")
    report = minutes(
        path,
        (30, {TRAIN: Sample(MIB, None, 50, 250), other: Sample(MIB, None, 50, 20)}),
        (30, {TRAIN: Sample(MIB, None, 50, 180), other: Sample(MIB, None, 50, 20)}),
        by="namespace",
        points=24,
    )
    assert [row.busy_gpu_hours for row in report.allocations] == pytest.approx([1, 0.2])
    for row in (*report.rows, *report.devices, report.total):
        assert row.busy_gpu_hours == pytest.approx(1.2)
        assert row.allocated_gpu_hours == pytest.approx(1)
        assert max(value or 0 for value in row.timeline.busy_gpus) == pytest.approx(1.2)


def test_what_is_not_known_is_not_zero(path):
    (row,) = minutes(path, (60, {TRAIN: Sample(MIB)})).rows
    assert row.busy_gpu_hours is row.leftover_hours is row.allocated_gpu_hours is None
    assert row.driver_busy_gpu_hours is row.driver_memory_peak_bytes is None
    assert row.loaded_idle_hours == 0


def test_memory_without_a_process_is_left_over_where_processes_are_known(path):
    samples = [{TRAIN: Sample(GIB, processes=number)} for number in (None, 1, 0)]
    (row,) = minutes(path, (30, samples[0]), (30, samples[1]), (60, samples[2])).rows
    assert row.leftover_hours == pytest.approx(1)


def test_no_percentile_is_above_the_peak(path):
    """Percentiles are of values that are rounded up."""
    report = minutes(path, (60, {TRAIN: Sample(GIB + 1)}))
    assert report.total is not None
    for row in (*report.rows, report.total):
        assert (row.memory_p95_bytes, row.memory_p99_bytes) == (GIB + 1, GIB + 1)


def test_the_drivers_figures_are_kept_apart(path):
    first = Sample(GIB, None, 100, 0, 1, 2 * GIB, 60)
    (row,) = minutes(
        path, (30, {TRAIN: first}), (30, {TRAIN: attrs.evolve(first, driver_sm_percent=250)})
    ).rows
    assert row.busy_gpu_hours == 0
    assert row.driver_busy_gpu_hours == pytest.approx(0.8)
    assert row.driver_memory_peak_bytes == 2 * GIB
    assert row.memory_peak_bytes == GIB


# ---- several nodes -------------------------------------------------------------------------------


def of_nodes(directory: Path, **more: object) -> Report:
    """Two nodes, recorded for two hours from midnight on, and from 1:00 on."""
    nodes = (("node-a", 0, 2 * GIB, 8), ("node-b", 60, 5 * GIB, None))
    for name, begin, used, gpus in nodes:
        with RecordingWriter(directory / f"{name}.db", interval_s=60, node=name) as writer:
            for minute in range(begin, begin + 120):
                sample = Sample(used, 8 * GIB, 50, 20)
                of = attrs.evolve(TRAIN, pod_uid=name, device_uuid=f"GPU-{name}")
                writer.write({of: sample}, at_ms=SINCE_MS + minute * 60_000, gpus=gpus)
    with Recording(directory / "node-a.db") as a, Recording(directory / "node-b.db") as b:
        return make_report([a, b], SINCE_MS, SINCE_MS + 4 * HOUR_MS, **more)  # type: ignore[arg-type]


def test_several_recordings_are_one_report_and_their_sums_are_those_of_each_moment(tmp_path):
    report = of_nodes(tmp_path, by="node", points=4)
    assert [(row.node, row.memory_peak_bytes // GIB) for row in report.rows] == [
        ("node-a", 2), ("node-b", 5)
    ]  # fmt: skip
    assert report.total.memory_peak_bytes == 7 * GIB
    assert report.total.peak_at_ms == SINCE_MS + HOUR_MS
    assert report.total.observed_s == 3 * 3600
    assert report.total.device_hours == pytest.approx(4)
    assert report.total.timeline.memory_peak_bytes == (2 * GIB, 7 * GIB, 5 * GIB, None)
    assert report.total.timeline.allocated_gpus == (0.5, 1, 0.5, None)
    assert (report.node, report.total.node) == (None, None)


def test_a_gap_of_several_recordings_is_the_time_that_none_has(tmp_path):
    report = of_nodes(tmp_path)
    assert report.gaps == ((SINCE_MS + 3 * HOUR_MS, SINCE_MS + 4 * HOUR_MS),)
    assert report.recorded_ratio == pytest.approx(0.5)
    assert [warning.rpartition("/")[2] for warning in report.warnings] == [
        f"node-{name}.db covers 50 % of the time" for name in "ab"
    ]


def of_one_node(directory: Path, new_begins: int) -> Report:
    """An archived recording of an hour, and the next one of two hours, which begins at a minute."""
    paths = [directory / name for name in ("old.db", "new.db")]
    for path, begin, length in zip(paths, (0, new_begins), (60, 120), strict=True):
        with RecordingWriter(path, interval_s=60, node="node-a") as writer:
            for minute in range(begin, begin + length):
                writer.write({TRAIN: Sample(GIB)}, at_ms=SINCE_MS + minute * 60_000, gpus=4)
    with Recording(paths[0]) as old, Recording(paths[1]) as new:
        return make_report([new, old], SINCE_MS, SINCE_MS + 3 * HOUR_MS)


def test_recordings_of_one_node_one_after_the_other_are_one_node(tmp_path):
    """As when a file has been archived, and a new one begun."""
    report = of_one_node(tmp_path, new_begins=60)
    assert (report.node, report.gpus, report.recorded_ratio) == ("node-a", 4, 1)
    assert (report.gaps, report.warnings) == ((), ())
    assert [row.observed_s for row in report.rows] == [3 * 3600]


def test_recordings_of_one_node_that_overlap_are_reported(tmp_path):
    report = of_one_node(tmp_path, new_begins=30)
    assert report.recorded_ratio == pytest.approx(2.5 / 3)
    (warning,) = report.warnings
    assert "overlap" in warning


def test_the_capacity_is_the_nodes_gpus_or_those_that_were_held(tmp_path, day):
    # Eight of node-a by its driver; of node-b the driver is not known.
    assert of_nodes(tmp_path).gpus == 8
    assert of_day(day).gpus == 8
    assert of_day(day, select=Selector(device="GPU-0*")).gpus == 1


# ---- the bill ------------------------------------------------------------------------------------

A100, L4, SLICE = "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
CARDS = {
    "GPU-a": Gpu(A100, 80 * GIB),
    "GPU-l": Gpu(L4, 24 * GIB),
    "MIG-s": Gpu(SLICE, 10 * GIB),
}
# Namespace, GPU, from and until which hour; memory used and its limit in GiB; SM limit, SM percent.
TENANTS = (
    ("vision", "GPU-a", 0, 4, 20, 40, 50, 30),
    ("speech", "GPU-a", 0, 2, 10, 20, 100, 10),  # no SM limit: a quarter of the card's memory
    ("speech", "GPU-l", 1, 4, 6, 12, 25, 20),
    ("batch", "GPU-l", 0, 4, 24, None, 100, 90),  # no limit at all: a whole card
    ("lab", "MIG-s", 2, 4, 5, 10, 100, 40),  # all of its slice
    ("idle", "GPU-a", 0, 4, 0, 120, 100, 0),  # more memory than the card has
)


def billed(path: Path, cards: dict[str, Gpu] | None = None, **more: object) -> Report:
    """Four hours of five namespaces."""
    with RecordingWriter(path, interval_s=60, node="node-a") as writer:
        for minute in range(240):
            samples = {
                Allocation(namespace, f"{namespace}-0", "main", namespace, 0, uuid): Sample(
                    used * GIB, None if limit is None else limit * GIB, sm_limit, sm, 1
                )
                for namespace, uuid, begin, end, used, limit, sm_limit, sm in TENANTS
                if begin * 60 <= minute < end * 60
            }
            known = CARDS if cards is None else cards
            writer.write(samples, at_ms=SINCE_MS + minute * 60_000, devices=known)
    return of_day(path, until_ms=SINCE_MS + 4 * HOUR_MS, **more)


def test_the_bill_of_five_namespaces_is_what_a_sheet_of_paper_says(path):
    report = billed(path, prices={"A100": 2.0, "l4": 0.5, "MIG 1g": 0.25})
    lines = {
        # GiB·h limits, GiB·h used, GPU·h allocated, GPU·h busy, cost allocated, cost used
        "batch": (0, 96, 4.0, 3.6, 2.0, 1.8),
        "idle": (480, 0, 6.0, 0, 12.0, 0),
        "lab": (20, 10, 2.0, 0.8, 0.5, 0.2),
        # Two hours of a quarter of an A100, three of a quarter of an L4.
        "speech": (40 + 36, 20 + 18, 0.5 + 0.75, 0.2 + 0.6, 1.0 + 0.375, 0.4 + 0.3),
        "vision": (160, 80, 2.0, 1.2, 4.0, 2.4),
    }
    assert (report.bill_by, report.warnings) == ("namespace", ())
    assert [row.namespace for row in report.bill] == [*lines]

    def figures(row: Usage | None) -> tuple[float | None, ...]:
        hours = row.limit_gib_hours, row.used_gib_hours, row.allocated_gpu_hours, row.busy_gpu_hours
        return (*hours, row.cost_allocated, row.cost_used)

    for row in report.bill:
        assert figures(row) == pytest.approx(lines[row.namespace or ""])
        assert row.allocated_ratio == pytest.approx(lines[row.namespace or ""][2] / 15.25)
    assert figures(report.total) == pytest.approx(
        [sum(each) for each in zip(*lines.values(), strict=True)]
    )
    by_pod = of_day(path, until_ms=SINCE_MS + 4 * HOUR_MS, by="pod")
    assert [(row.pod, row.cost_used) for row in by_pod.bill] == [(f"{n}-0", None) for n in lines]


def test_without_an_sm_limit_a_container_has_its_memorys_share_or_a_whole_gpu(path):
    shares = {
        (row.namespace, row.device_uuid): row.allocated_gpu_hours
        for row in billed(path, unlimited_sm_as="whole").allocations
    }
    assert shares["speech", "GPU-a"] == pytest.approx(2)
    assert shares["idle", "GPU-a"] == pytest.approx(4)
    assert shares["speech", "GPU-l"] == pytest.approx(0.75)


def test_the_share_of_a_card_of_unknown_memory_is_not_known(path):
    report = billed(path, cards={}, prices={"A100": 2.0})
    hours = {
        (row.namespace, row.device_uuid): row.allocated_gpu_hours for row in report.allocations
    }
    assert (hours["speech", "GPU-a"], hours["idle", "GPU-a"]) == (None, None)
    # An SM limit says it, and so does no limit at all.
    assert (hours["vision", "GPU-a"], hours["batch", "GPU-l"]) == (2, 4)
    assert report.total.cost_allocated is None
    memory, price = report.warnings
    assert "memory of some GPUs is not known" in memory
    assert "no price fits GPUs whose model is not known" in price


def test_a_slice_of_a_card_does_not_cost_what_the_card_does(path):
    report = billed(path, prices={"A100": 2.0, "*": 1.0})
    costs = {row.namespace: row.cost_allocated for row in report.bill}
    assert costs["lab"] == pytest.approx(2 * 1.0)
    report = of_day(path, until_ms=SINCE_MS + 4 * HOUR_MS, prices={"A100": 2.0})
    assert {row.namespace: row.cost_allocated for row in report.bill}["lab"] is None
    assert report.warnings == (
        f"no price fits {SLICE}; costs leave its hours out",
        f"no price fits {L4}; costs leave its hours out",
    )


def test_a_recording_of_before_has_no_cards_until_it_is_written_to(path):
    billed(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript("DROP TABLE devices; PRAGMA user_version = 2;")
    report = of_day(path, until_ms=SINCE_MS + 4 * HOUR_MS)
    assert "recorded by an earlier version" in report.warnings[0]
    assert report.total.busy_gpu_hours == pytest.approx(3.6 + 0.8 + 0.8 + 1.2)
    with RecordingWriter(path, interval_s=60) as writer:
        writer.write({}, at_ms=SINCE_MS + 5 * HOUR_MS, devices=CARDS)
    report = of_day(path, until_ms=SINCE_MS + 4 * HOUR_MS)
    assert report.warnings == ()
    assert report.total.allocated_gpu_hours == pytest.approx(15.25)
