"""The figures of a report, against what a plain reading of the same day comes to."""

from collections import defaultdict
from pathlib import Path

import attrs
import pytest
from recorded_day import DAY_S, GAP_S, GIB, MIB, MIDNIGHT_S, Tenant, looks, record, tenants

from libhamiregion.node import Selector
from libhamiregion.report import (
    Coverage,
    Gap,
    Reading,
    RecordedContainer,
    Recording,
    RecordingWriter,
    Report,
    Suggestion,
    SuggestionPolicy,
    Timeline,
    Usage,
    make_report,
    report_html,
)
from libhamiregion.report.models import LEVELS

INTERVAL_S = 60
SINCE_MS = MIDNIGHT_S * 1000
UNTIL_MS = SINCE_MS + DAY_S * 1000
POINTS = 48

Name = tuple[str | None, str | None, str | None]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("day") / "node.db"
    record(path, tenants(), interval_s=INTERVAL_S)
    return path


@pytest.fixture(scope="module")
def report(day: Path) -> Report:
    return of_day(day, points=POINTS)


def of_day(day: Path, since_ms: int = SINCE_MS, until_ms: int = UNTIL_MS, **more: object) -> Report:
    with Recording(day) as recording:
        return make_report(recording, since_ms, until_ms, **more)  # type: ignore[arg-type]


@attrs.define
class Plain:
    """The sums of one allocation or group, kept the slow way: one value per minute."""

    used: list[int] = attrs.field(factory=list)
    seconds: list[int] = attrs.field(factory=list)
    limit: int = 0
    held: int = 0
    busy: float = 0
    allocated: float = 0
    unused: int = 0
    unused_limit: int = 0
    idle: int = 0
    leftover: int = 0
    longest: int = 0
    stretch: int = 0
    last_used: int | None = None

    def add(self, second: int, reading: Reading) -> None:
        used, sm = reading.memory_used_bytes, reading.sm_util_percent or 0
        # The gap begins one interval after the last look before it, on a look that was missed.
        if second == GAP_S[1]:
            self.stretch = 0
        self.seconds.append(second)
        self.used.append(used)
        self.held += INTERVAL_S
        self.limit += (reading.memory_limit_bytes or 0) * INTERVAL_S
        self.busy += min(sm, 100) / 100 * INTERVAL_S
        self.allocated += (reading.sm_limit_percent or 100) / 100 * INTERVAL_S
        if used:
            self.stretch = 0
            self.last_used = second + INTERVAL_S
            self.idle += INTERVAL_S * (sm == 0)
            self.leftover += INTERVAL_S * (reading.processes == 0)
        else:
            self.unused += INTERVAL_S
            self.unused_limit += (reading.memory_limit_bytes or 0) * INTERVAL_S
            self.stretch += INTERVAL_S
            self.longest = max(self.longest, self.stretch)


@pytest.fixture(scope="module")
def plain() -> dict[Name, Plain]:
    found: dict[Name, Plain] = defaultdict(Plain)
    for second, readings in looks(tenants(), interval_s=INTERVAL_S):
        for each in readings:
            container = each.container
            found[container.namespace, container.pod, container.name].add(second, each)
    return found


def hours(seconds: float) -> float:
    return pytest.approx(seconds / 3600)  # type: ignore[return-value]


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[-(-round(share * len(values) * 1000) // 1000) - 1]


def test_each_allocation_has_its_row(report: Report, plain: dict[Name, Plain]) -> None:
    assert [(row.namespace, row.pod, row.container) for row in report.allocations] == sorted(
        plain, key=lambda name: tuple(str(part) for part in name)
    )
    assert report.rows == report.allocations


def test_memory_hours_and_peaks_are_those_of_a_plain_reading(
    report: Report, plain: dict[Name, Plain]
) -> None:
    for row in report.allocations:
        own = plain[row.namespace, row.pod, row.container]
        assert row.observed_s == own.held
        assert row.device_hours == hours(own.held)
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


def test_gpu_hours_are_those_of_the_formulas(report: Report, plain: dict[Name, Plain]) -> None:
    for row in report.allocations:
        own = plain[row.namespace, row.pod, row.container]
        assert row.allocated_gpu_hours == hours(own.allocated)
        assert row.busy_gpu_hours == hours(own.busy)
        assert row.driver_busy_gpu_hours is None
        assert row.loaded_idle_hours == hours(own.idle)
        assert row.leftover_hours == hours(own.leftover)


def test_time_unused_is_that_of_a_plain_reading(report: Report, plain: dict[Name, Plain]) -> None:
    for row in report.allocations:
        own = plain[row.namespace, row.pod, row.container]
        assert row.unused_hours == hours(own.unused)
        assert row.unused_gib_hours == hours(own.unused_limit / GIB)
        assert row.unused_longest_hours == hours(own.longest)
        last = None if own.last_used is None else (MIDNIGHT_S + own.last_used) * 1000
        assert row.last_used_ms == last
        at_end = own.seconds[-1] == DAY_S - INTERVAL_S and own.used[-1] == 0
        assert (row.unused_since_ms is not None) == at_end
        if row.unused_since_ms is not None:
            assert row.unused_since_ms == UNTIL_MS - own.stretch * 1000


def sums_of(plain: dict[Name, Plain], namespace: str | None = None) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for name, own in plain.items():
        if namespace in {None, name[0]}:
            for second, used in zip(own.seconds, own.used, strict=True):
                found[second] += used
    return found


def test_groups_have_the_peak_of_the_sum_and_not_the_sum_of_peaks(
    report: Report, plain: dict[Name, Plain]
) -> None:
    assert [row.namespace for row in report.namespaces] == [
        "batch", "inference", "notebooks", "research"
    ]  # fmt: skip
    for row in report.namespaces:
        sums = sums_of(plain, row.namespace)
        members = [own for name, own in plain.items() if name[0] == row.namespace]
        assert row.allocations == len(members)
        assert row.memory_peak_bytes == max(sums.values())
        assert row.memory_average_bytes == sum(sums.values()) // len(sums)
        exact = percentile(list(sums.values()), 0.95)
        assert exact <= row.memory_p95_bytes <= exact * 1.004
        assert row.device_hours == hours(sum(own.held for own in members))
        assert row.busy_gpu_hours == hours(sum(own.busy for own in members))
        assert row.unused_gib_hours == hours(sum(own.unused_limit for own in members) / GIB)
    total = report.total
    assert total is not None
    assert total.memory_peak_bytes == max(sums_of(plain).values())
    assert total.memory_limit_bytes == max(
        sum(
            tenant.limit_bytes or 0 for tenant in tenants() if tenant.from_s <= second < tenant.to_s
        )
        for second in range(0, DAY_S, INTERVAL_S)
    )


@pytest.mark.parametrize("by", LEVELS)
def test_rows_of_every_level_add_up_to_the_same(day: Path, report: Report, by: str) -> None:
    rows = of_day(day, by=by).rows
    total = report.total
    assert total is not None
    assert sum(row.allocations for row in rows) == total.allocations == 29
    assert sum(row.used_gib_hours for row in rows) == pytest.approx(total.used_gib_hours)
    assert sum(row.busy_gpu_hours or 0 for row in rows) == pytest.approx(total.busy_gpu_hours)
    assert len(rows) == {"namespace": 4, "pod": 29, "container": 29, "device": 8}[by]


def test_what_was_not_recorded_is_a_gap_and_nothing_else(report: Report) -> None:
    gap = Gap(*((MIDNIGHT_S + second) * 1000 for second in GAP_S))
    length = GAP_S[1] - GAP_S[0]
    assert report.coverage == Coverage(
        recorded_s=DAY_S - length, ratio=1 - length / DAY_S, gaps=(gap,), gap_count=1
    )


def test_time_before_and_after_the_recording_is_a_gap_too(day: Path) -> None:
    report = of_day(day, SINCE_MS - 3_600_000, UNTIL_MS + 7_200_000)
    assert report.coverage.gap_count == 3
    assert report.coverage.gaps[0] == Gap(SINCE_MS - 3_600_000, SINCE_MS)
    assert report.coverage.gaps[-1] == Gap(UNTIL_MS, UNTIL_MS + 7_200_000)
    assert report.total is not None
    assert report.total.last_seen_ms == UNTIL_MS


def test_nothing_recorded_is_no_total(day: Path) -> None:
    report = of_day(day, UNTIL_MS + 1, UNTIL_MS + 2)
    assert report.total is None
    assert report.rows == report.devices == ()
    assert report.coverage.ratio == 0


def test_parts_of_a_day_add_up_to_the_day(day: Path, report: Report) -> None:
    """What changed before a part begins is what the part begins with."""
    total = report.total
    assert total is not None
    step_ms = (UNTIL_MS - SINCE_MS) // 7
    used = busy = 0.0
    for number in range(7):
        since_ms = SINCE_MS + number * step_ms
        until_ms = UNTIL_MS if number == 6 else since_ms + step_ms
        part = of_day(day, since_ms, until_ms).total
        assert part is not None
        used += part.used_gib_hours
        busy += part.busy_gpu_hours or 0
    assert used == pytest.approx(total.used_gib_hours)
    assert busy == pytest.approx(total.busy_gpu_hours)


def test_timelines_show_peaks_averages_and_gaps(report: Report, plain: dict[Name, Plain]) -> None:
    total = report.total
    assert total is not None
    timeline = total.timeline
    assert isinstance(timeline, Timeline)
    assert timeline.step_ms == DAY_S * 1000 // POINTS
    sums = sums_of(plain)
    step_s = DAY_S // POINTS
    for number in range(POINTS):
        seconds = range(number * step_s, (number + 1) * step_s, INTERVAL_S)
        values = [sums[second] for second in seconds if second in sums]
        assert timeline.memory_peak_bytes[number] == (max(values) if values else None)
        average = sum(values) // len(values) if values else None
        assert timeline.memory_used_bytes[number] == average
    assert len(timeline.busy_gpus) == len(timeline.allocated_gpus) == POINTS


def test_a_selector_chooses(day: Path) -> None:
    rows = of_day(day, select=Selector(namespace="note*", pod="*-a*")).rows
    assert [row.pod for row in rows] == ["jupyter-ada", "jupyter-alan"]
    assert len(of_day(day, select=Selector(device="GPU-0*")).rows) == 1
    assert of_day(day, select=Selector(device="1")).rows == ()


# ---- suggested limits ----------------------------------------------------------------------------


def suggestion_of(report: Report, pod: str) -> Suggestion | None:
    (row,) = (row for row in report.allocations if row.pod == pod)
    return row.suggestion


def test_limits_are_suggested_from_the_99th_percentile(report: Report) -> None:
    # 11 GiB x 1.1 = 12.1, and up to the next quarter.
    assert suggestion_of(report, "bert-sweep-7d9f4") == Suggestion(
        "lower", int(12.25 * GIB), int(-19.75 * GIB)
    )
    raised = suggestion_of(report, "tabular-rnn")
    assert raised is not None
    assert raised.verdict == "raise"
    unlimited = suggestion_of(report, "legacy-etl")
    assert unlimited is not None
    assert (unlimited.verdict, unlimited.change_bytes) == ("limit", None)
    assert suggestion_of(report, "jupyter-emmy") == Suggestion("unused")
    assert suggestion_of(report, "render-01") == Suggestion("too_little_seen")


def test_no_suggestion_is_below_the_peak_unless_it_may(tmp_path: Path) -> None:
    """A short peak that the percentile does not see."""
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    with RecordingWriter(path, interval_s=60) as writer:
        for minute in range(600):
            used = 7 * GIB if minute == 300 else 2 * GIB
            writer.write(
                [Reading(container, 0, None, used, 8 * GIB)],
                at_ms=SINCE_MS + minute * 60_000,
                running_ms=minute * 60_000,
            )
    (row,) = of_day(path).rows
    assert row.memory_p99_bytes == 2 * GIB
    assert row.suggestion == Suggestion("lower", 7 * GIB, -GIB)
    policy = SuggestionPolicy(below_peak=True, headroom=0.5, round_to_bytes=GIB)
    assert policy.limit_bytes(p99_bytes=2 * GIB, peak_bytes=7 * GIB) == 3 * GIB
    (row,) = of_day(path, policy=policy).rows
    assert row.suggestion == Suggestion("lower", 3 * GIB, -5 * GIB)


# ---- containers that do not behave ---------------------------------------------------------------


def write_minutes(path: Path, minutes: list[list[Reading]]) -> None:
    with RecordingWriter(path, interval_s=60) as writer:
        for minute, readings in enumerate(minutes):
            writer.write(readings, at_ms=SINCE_MS + minute * 60_000, running_ms=minute * 60_000)


def test_a_device_whose_uuid_becomes_known_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    before = Reading(container, 0, None, 0, 8 * GIB)
    after = Reading(container, 0, "GPU-a", GIB, 8 * GIB)
    write_minutes(path, [[before]] * 60 + [[after]] * 60)
    report = of_day(path, by="device")
    (row,) = report.allocations
    assert isinstance(row, Usage)
    assert row.device_uuid == "GPU-a"
    assert row.device_hours == pytest.approx(2)
    assert row.unused_longest_hours == pytest.approx(1)
    (device,) = report.rows
    assert device.memory_peak_bytes == GIB


def test_a_device_has_what_was_used_of_it_before_its_uuid_was_known(tmp_path: Path) -> None:
    """Its row says the same thing in all its figures."""
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    before = Reading(container, 0, None, 8 * GIB, 16 * GIB)
    after = Reading(container, 0, "GPU-a", GIB, 16 * GIB)
    write_minutes(path, [[before]] * 60 + [[after]] * 60)
    for report in (of_day(path, by="device"), of_day(path, until_ms=SINCE_MS + 3_600_000)):
        (row,), (device,) = report.allocations, report.devices
        assert device.device_uuid == row.device_uuid == "GPU-a"
        for field in ("observed_s", "device_hours", "used_gib_hours", "memory_average_bytes"):
            assert getattr(device, field) == getattr(row, field)
        assert device.memory_peak_bytes == 8 * GIB
    assert of_day(path).devices[0].observed_s == 7_200


def test_a_device_that_is_unknown_for_a_while_is_the_one_that_is_told_next(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    told = [
        Reading(container, 0, uuid, used * GIB)
        for used, uuid in enumerate(("GPU-a", None, "GPU-b"), start=1)
    ]
    write_minutes(path, [[each] for each in told for _ in range(60)])
    report = of_day(path)
    assert {row.device_uuid: row.memory_peak_bytes for row in report.rows} == {
        "GPU-a": GIB,
        "GPU-b": 3 * GIB,
    }
    assert [row.observed_s for row in report.rows] == [3_600, 7_200]


def test_activity_belongs_to_what_is_there_wherever_a_report_begins(tmp_path: Path) -> None:
    """The uuid is known, then not for a few looks, then known again."""
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    known = Reading(container, 0, "GPU-a", GIB, None, None, 80)
    unknown = Reading(container, 0, None, GIB, None, None, 0)
    write_minutes(path, [[known]] * 5 + [[unknown]] * 3 + [[known]] * 42)
    (whole,) = of_day(path).rows
    assert whole.busy_gpu_hours == pytest.approx(47 / 60 * 0.8)
    (part,) = of_day(path, SINCE_MS + 600_000).rows
    assert part.busy_gpu_hours == pytest.approx(40 / 60 * 0.8)


# ---- several regions of one container ------------------------------------------------------------

OWN = RecordedContainer("0b5c", "train", None, None, "research", "bert-0")
MADE = RecordedContainer("0b5c", "train", "c0ffee", "/tmp/own.cache", "research", "bert-0")


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_regions_that_of_the_directory_counts(tmp_path: Path, order: int) -> None:
    """As the exporter shows it; a container cannot hide what it uses behind another region."""
    path = tmp_path / "node.db"
    own = Reading(OWN, 0, "GPU-a", 40 * GIB, 48 * GIB, 50, 90)
    empty = Reading(MADE, 0, "GPU-a", 0, 48 * GIB, 50, 0)
    grown = attrs.evolve(empty, memory_used_bytes=3 * GIB, sm_util_percent=7)
    beside = Reading(MADE, 1, "GPU-b", 20 * GIB)
    minutes = [[own]] * 10 + [[own, empty]] * 20 + [[own, grown, beside]] * 20 + [[own]] * 10
    write_minutes(path, [readings[::order] for readings in minutes])
    report = of_day(path)
    (row,) = report.rows
    assert row.memory_average_bytes == 40 * GIB
    assert row.busy_gpu_hours == pytest.approx(0.9)
    assert report.total is not None
    assert report.total.memory_peak_bytes == 40 * GIB
    assert report.total.limit_gib_hours == pytest.approx(48)
    (warning,) = report.warnings
    assert "'train' of pod 'bert-0'" in warning
    assert "'/tmp/own.cache', with up to 20 GiB" in warning
    assert of_day(path, select=Selector(container="other")).warnings == ()


def test_without_one_in_its_directory_another_region_counts_and_steps_back(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    own = Reading(OWN, 0, "GPU-a", 5 * GIB, None, None, 50)
    made = Reading(MADE, 0, "GPU-a", 2 * GIB, None, None, 10)
    last = attrs.evolve(
        made, container=attrs.evolve(MADE, place="/tmp/z.cache"), memory_used_bytes=GIB
    )
    write_minutes(
        path, [[made]] * 15 + [[made, last]] * 15 + [[made, last, own]] * 15 + [[made]] * 15
    )
    report = of_day(path)
    (row,) = report.rows
    assert row.used_gib_hours == pytest.approx((2 + 1 + 5 + 2) / 4)
    assert row.busy_gpu_hours == pytest.approx((10 + 10 + 50 + 10) / 400)
    (warning,) = report.warnings
    assert "'/tmp/own.cache' and 1 more, with up to 2 GiB" in warning


# ---- limits that come and go, and containers that end --------------------------------------------


def test_memory_counts_against_limits_while_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    limited = Reading(OWN, 0, "GPU-a", GIB, 2 * GIB)
    free = Reading(OWN, 0, "GPU-a", 60 * GIB)
    write_minutes(path, [[limited]] * 60 + [[free]] * 60)
    report = of_day(path)
    for row in (*report.rows, *report.namespaces, report.total):
        assert row is not None
        assert row.limited_used_gib_hours == pytest.approx(1)
        assert row.used_gib_hours == pytest.approx(61)
    assert '<span class="what">Memory limits in use</span><b>50 %</b>' in report_html(report)


def test_a_group_is_unused_since_all_that_is_there_is(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    idle, ended, busy = (
        Reading(attrs.evolve(OWN, pod_uid=uid, pod=uid), 0, "GPU-a", used, GIB)
        for uid, used in (("1", 0), ("2", GIB), ("3", GIB))
    )
    hour = 3_600_000
    write_minutes(path, [[idle]] * 60 + [[idle, ended]] * 60 + [[idle]] * 60)
    report = of_day(path)
    assert [row.unused_since_ms for row in report.rows] == [SINCE_MS, None]
    # Until it ended, the other one used memory.
    assert [row.unused_since_ms for row in report.namespaces] == [SINCE_MS + 2 * hour]
    write_minutes(tmp_path / "busy.db", [[idle, ended]] * 60 + [[idle, busy]] * 60)
    assert of_day(tmp_path / "busy.db").namespaces[0].unused_since_ms is None
    write_minutes(tmp_path / "over.db", [[ended, busy]] * 60 + [[busy]] * 60)
    assert of_day(tmp_path / "over.db").namespaces[0].unused_since_ms is None


def test_sizes_that_no_gpu_has_are_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    honest = Reading(RecordedContainer("0b5c", "honest"), 0, "GPU-a", GIB, 8 * GIB)
    liar = RecordedContainer("1c6d", "liar\x1b[2J")
    write_minutes(
        path,
        [
            [honest, Reading(liar, 0, "GPU-a", 2**62 if minute % 2 else 3 * GIB, 4 * GIB)]
            for minute in range(60)
        ],
    )
    report = of_day(path)
    assert report.total is not None
    assert report.total.memory_peak_bytes == 4 * GIB
    honest_row, liar_row = report.rows
    assert honest_row.observed_s == 3_600
    assert liar_row.observed_s == 1_800
    (warning,) = report.warnings
    assert "above 64 TiB" in warning
    assert "\x1b" not in warning


def test_utilisation_above_a_whole_gpu_counts_as_one(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    write_minutes(path, [[Reading(container, 0, None, MIB, None, 50, 250)]] * 60)
    (row,) = of_day(path).rows
    assert row.busy_gpu_hours == pytest.approx(1)
    assert row.allocated_gpu_hours == pytest.approx(0.5)


def test_what_a_layout_does_not_tell_is_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    write_minutes(path, [[Reading(container, 0, None, MIB)]] * 60)
    (row,) = of_day(path).rows
    assert row.busy_gpu_hours is None
    assert row.leftover_hours is None
    assert row.loaded_idle_hours == 0


def test_memory_with_nobody_known_there_is_no_left_over(tmp_path: Path) -> None:
    container = RecordedContainer("0b5c", "train")
    unknown, used, left = (
        Reading(container, 0, None, GIB, processes=number) for number in (None, 1, 0)
    )
    write_minutes(tmp_path / "known.db", [[unknown]] * 30 + [[used]] * 30)
    (row,) = of_day(tmp_path / "known.db").rows
    assert row.leftover_hours == 0
    write_minutes(tmp_path / "left.db", [[unknown]] * 30 + [[used]] * 30 + [[left]] * 60)
    (row,) = of_day(tmp_path / "left.db").rows
    assert row.leftover_hours == pytest.approx(1)


def test_no_percentile_is_above_the_peak(tmp_path: Path) -> None:
    """Percentiles are of values that are rounded up."""
    path = tmp_path / "node.db"
    write_minutes(path, [[Reading(RecordedContainer("0b5c", "train"), 0, None, GIB + 1)]] * 60)
    report = of_day(path)
    assert report.total is not None
    for row in (*report.rows, report.total):
        assert (row.memory_p95_bytes, row.memory_p99_bytes) == (GIB + 1, GIB + 1)


def test_what_the_driver_says_above_a_whole_gpu_counts_as_one(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    told = Reading(RecordedContainer("0b5c", "train"), 0, None, MIB, driver_sm_percent=250)
    write_minutes(path, [[told]] * 60)
    (row,) = of_day(path).rows
    assert row.driver_busy_gpu_hours == pytest.approx(1)


def test_the_drivers_figures_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    container = RecordedContainer("0b5c", "train")
    told = Reading(container, 0, None, GIB, None, None, 0, 1, 2 * GIB, 60)
    write_minutes(path, [[told]] * 60)
    (row,) = of_day(path).rows
    assert row.busy_gpu_hours == 0
    assert row.driver_busy_gpu_hours == pytest.approx(0.6)
    assert row.driver_memory_peak_bytes == 2 * GIB
    assert row.memory_peak_bytes == GIB


def test_a_report_needs_time_and_a_level_that_there_is(day: Path) -> None:
    with pytest.raises(ValueError, match="beginning before its end"):
        of_day(day, UNTIL_MS, UNTIL_MS)
    with pytest.raises(ValueError, match="none of namespace, pod, container, device"):
        of_day(day, by="node")


def test_tenants_of_the_day_have_names_of_their_own() -> None:
    """Otherwise the comparisons above would add up two."""
    names = [(each.namespace, each.pod, each.container) for each in tenants()]
    assert len(set(names)) == len(names)
    assert all(isinstance(each, Tenant) for each in tenants())
