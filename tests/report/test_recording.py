"""The recording: what is written is what is read, within its bounds, and gaps are gaps."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import time
from typing import TYPE_CHECKING

import attrs
import pytest
from support.wait import eventually

from libhamiregion.report import (
    Allocation,
    Recording,
    RecordingError,
    RecordingUnavailable,
    RecordingWriter,
    Sample,
    make_report,
)
from libhamiregion.report.history import ReportInterval
from libhamiregion.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from libhamiregion.report.writer import Written

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
T0 = 1_790_812_800_000
STEP_MS = 15_000
ALWAYS = (0, 2**60)

TRAIN = Allocation("research", "bert-0", "train", "0b5c", 0, "GPU-a")
SERVE = Allocation("prod", "chat-1", "serve", "1c6d", 3, None)

made: list[Clocked] = []


class Clocked:
    """A writer, and the clock that its looks are dated by."""

    def __init__(self, path: Path, **options: object) -> None:
        self.writer = RecordingWriter(path, **{"interval_s": 15, **options})  # type: ignore[arg-type]
        made.append(self)
        self.at_ms = T0

    def look(
        self,
        samples: dict[Allocation, int | Sample] | None = None,
        *,
        after_ms: int = STEP_MS,
        times: int = 1,
    ) -> Written:
        """Write looks; an integer is the memory used."""
        shown = {TRAIN: GIB} if samples is None else samples
        whole = {of: Sample(each) if isinstance(each, int) else each for of, each in shown.items()}
        for _ in range(times):
            written = self.writer.write(whole, at_ms=self.at_ms)
            self.at_ms += after_ms
        return written

    def hours(self, count: int) -> Written:
        for _ in range(count):
            written = self.look(times=240)
        return written


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while made:
        made.pop().writer.close()


@pytest.fixture
def writer(path) -> Clocked:
    return Clocked(path)


def looks(path: Path, span: tuple[int, int] = ALWAYS) -> list[ReportInterval]:
    with Recording(path) as recording:
        return list(recording.intervals(*span))


def seconds(found: Sequence[ReportInterval]) -> list[tuple[float, float]]:
    return [((look.start_ms - T0) / 1000, (look.end_ms - T0) / 1000) for look in found]


def used(found: Sequence[ReportInterval]) -> list[int | None]:
    return [
        None if sample is None else sample.memory_used_bytes
        for look in found
        for sample in look.changes.values()
    ]


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(statement).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()


# ---- what is written -----------------------------------------------------------------------------


def test_what_was_written_is_read_back(path, writer):
    whole = Sample(GIB, 8 * GIB, 50, 37, 2, GIB + 5, 40)
    later = attrs.evolve(whole, sm_percent=38)
    writer.look({TRAIN: whole, SERVE: Sample(0)})
    writer.look({TRAIN: later})
    first, second = looks(path)
    assert first == ReportInterval(T0, T0 + STEP_MS, True, {TRAIN: whole, SERVE: Sample(0)})
    changes = {TRAIN: later, SERVE: None}
    assert second == ReportInterval(T0 + STEP_MS, T0 + 2 * STEP_MS, False, changes)
    with Recording(path) as recording:
        assert recording.span_ms() == (T0, T0 + 2 * STEP_MS)
        assert recording.facts().resolution_s == 15


def test_a_random_history_is_read_back_from_any_moment_on(path, writer):
    dice = random.Random(4)
    allocations = [attrs.evolve(TRAIN, pod_uid=str(number)) for number in range(6)]
    expected: list[dict[Allocation, Sample]] = []
    for _ in range(600):
        samples = {
            each: Sample(dice.randrange(3), dice.choice([None, 5]), 100, dice.randrange(4))
            for each in allocations
            if dice.random() < 0.8
        }
        writer.look(dict(samples))
        expected.append(samples)
    for begin in (0, 1, 250, 599):
        now: dict[Allocation, Sample] = {}
        for look in looks(path, (T0 + begin * STEP_MS + 1, 2**60)):
            if look.whole:
                now = {}
            now.update((of, each) for of, each in look.changes.items() if each is not None)
            for of in [of for of, each in look.changes.items() if each is None]:
                now.pop(of, None)
            assert now == expected[(look.start_ms - T0) // STEP_MS]


def test_what_stays_the_same_is_written_once_an_hour(path, writer):
    assert writer.look().rows == 1
    assert writer.look().rows == 0
    before = writer.look({TRAIN: 2 * GIB})
    assert before.rows == 1
    written = [writer.look({TRAIN: 2 * GIB}) for _ in range(240)]
    assert [each.rows for each in written if each.whole] == [1]
    assert sum(each.rows for each in written) == 1
    assert written[-1].size_bytes - before.size_bytes <= 240 * 24 + 4096
    assert [look.whole for look in looks(path)].count(True) == 2


def test_names_that_become_known_stay_known(path, writer):
    nameless = attrs.evolve(TRAIN, namespace=None, pod=None)
    for each in (nameless, TRAIN, nameless):
        writer.look({each: 1})
    assert query(path, "SELECT namespace, pod FROM allocations") == [("research", "bert-0")]


def test_a_device_that_is_not_reported_is_the_one_before_or_the_first(path, writer):
    for uuid in (None, "GPU-a", None, "GPU-b"):
        writer.look({attrs.evolve(TRAIN, device_uuid=uuid): 1})
    assert [
        {of.device_uuid for of, sample in look.changes.items() if sample is not None}
        for look in looks(path)
    ] == [{"GPU-a"}, set(), set(), {"GPU-b"}]


def test_the_file_can_be_read_with_sqlite_alone(path, writer):
    writer.look({TRAIN: Sample(GIB, sm_percent=7)})
    assert query(path, "SELECT at_utc, pod, device_uuid, used_bytes, sm_percent FROM readable") == [
        ("2026-10-01 00:00:00", "bert-0", "GPU-a", GIB, 7)
    ]


def test_the_view_has_a_word_for_what_is_not_limited(path, writer):
    writer.look({TRAIN: Sample(GIB, sm_limit_percent=100, sm_percent=7)})
    writer.look({TRAIN: Sample(GIB, sm_limit_percent=100, sm_percent=9)})
    writer.look({TRAIN: Sample(GIB, memory_limit_bytes=2 * GIB, sm_limit_percent=50)})
    assert query(path, "SELECT limit_bytes, sm_limit_percent FROM readable ORDER BY at_utc") == [
        ("unlimited", "unlimited"),
        (None, None),
        (2 * GIB, 50),
    ]


# ---- gaps and clocks -----------------------------------------------------------------------------


def test_a_look_holds_until_the_next_or_for_one_interval(path, writer):
    writer.look()
    writer.look(after_ms=29_000)
    # A pause, or a clock that is set forward.
    writer.look(after_ms=600_000)
    assert writer.look().whole
    assert seconds(looks(path)) == [(0, 15), (15, 44), (44, 59), (644, 659)]


def test_a_recorder_that_starts_again_at_once_leaves_no_gap(path):
    for number in range(2):
        writer = Clocked(path)
        writer.at_ms += number * 20_000
        assert writer.look().whole
        writer.writer.close()
    assert seconds(looks(path)) == [(0, 20), (20, 35)]


def test_where_the_clock_was_set_back_what_was_recorded_first_counts(path, writer):
    writer.look({TRAIN: 1}, times=20)
    writer.at_ms -= 40_000
    writer.look({TRAIN: 2}, times=4)
    found = looks(path)
    assert seconds(found)[18:] == [(270, 285), (285, 300), (300, 305), (305, 320)]
    assert (used(found[:20]), used(found[20:])) == ([1], [2])
    assert found[20].whole


def test_a_look_of_1970_hides_nothing(path, writer):
    writer.look({TRAIN: 1}, times=10)
    writer.at_ms -= T0
    writer.look({TRAIN: 2})
    writer.at_ms += T0
    writer.look({TRAIN: 3}, times=10)
    found = looks(path)
    assert (found[0].start_ms, found[0].end_ms) == (150_000, 165_000)
    assert seconds(found)[1:] == [(15.0 * at, 15.0 * (at + 1)) for at in range(21) if at != 10]


def test_part_of_a_recording_begins_with_what_held_then(path, writer):
    writer.look({TRAIN: GIB, SERVE: GIB})
    writer.look({TRAIN: 2 * GIB}, times=11)
    found = looks(path, (T0 + 50_000, T0 + 70_000))
    assert seconds(found) == [(50, 60), (60, 70)]
    assert found[0].whole
    assert found[0].changes == {TRAIN: Sample(2 * GIB), SERVE: None}
    assert looks(path, (T0 - 100, T0)) == []
    assert looks(path, (T0 + 10 * HOUR_MS, T0 + 11 * HOUR_MS)) == []


# ---- bounds --------------------------------------------------------------------------------------


def recorded_ms(path: Path) -> int:
    return sum(look.end_ms - look.start_ms for look in looks(path))


def test_what_is_older_than_the_retention_goes_and_what_is_in_use_stays(path):
    writer = Clocked(path, retention_s=3 * 3600)
    writer.look({TRAIN: GIB, SERVE: GIB})
    writer.hours(6)
    # Whole hours go, and the one that is being written stays.
    assert 3 * HOUR_MS <= recorded_ms(path) <= 4 * HOUR_MS + 2 * STEP_MS
    assert query(path, "SELECT id, container FROM allocations") == [(1, "train")]
    assert looks(path)[0].whole
    # No number is used twice.
    writer.look({TRAIN: GIB, SERVE: GIB})
    assert query(path, "SELECT id FROM allocations ORDER BY id") == [(1,), (3,)]


def test_what_retention_removes_meanwhile_is_read_to_its_end(path):
    writer = Clocked(path, retention_s=3 * 3600)
    writer.hours(3)
    before = looks(path)
    with Recording(path) as recording:
        reading = recording.intervals(T0, T0 + YEAR_MS)
        first = next(reading)
        writer.hours(6)
        assert [first, *reading] == before


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS, -T0])
def test_retention_goes_on_whatever_the_clock_has_said(path, jump_ms):
    """One look, and hours, of a wrong clock neither switch retention off nor empty the file."""
    writer = Clocked(path, retention_s=3 * 3600)
    writer.hours(2)
    for wrong_looks in (1, 400):
        before_ms = recorded_ms(path)
        writer.at_ms += jump_ms
        writer.look(times=wrong_looks)
        assert recorded_ms(path) >= min(before_ms, 3 * HOUR_MS)
        writer.at_ms -= jump_ms
        writer.hours(1)
        assert recorded_ms(path) >= 3 * HOUR_MS - 2 * STEP_MS * (wrong_looks == 1)
    writer.hours(7)
    found = looks(path)
    assert 3 * HOUR_MS <= recorded_ms(path) <= 4 * HOUR_MS + 2 * STEP_MS
    # What was dated wrong has gone with its time, and all of the last hours is there.
    assert found[0].start_ms >= writer.at_ms - 4 * HOUR_MS - 2 * STEP_MS
    assert found[-1].end_ms == writer.at_ms


def test_a_wrong_clock_at_a_start_empties_nothing(path):
    """A machine whose clock is a year ahead until it asks for the time."""
    writer = Clocked(path, retention_s=24 * 3600)
    writer.hours(5)
    writer.writer.close()
    ahead = Clocked(path, retention_s=24 * 3600)
    ahead.at_ms += YEAR_MS
    ahead.hours(3)
    assert recorded_ms(path) == 8 * HOUR_MS


def test_what_is_trimmed_is_never_charged_to_another(path):
    """Allocations that come and go while retention removes: each keeps what it used."""
    writer = Clocked(path, retention_s=2 * 3600)
    dice = random.Random(9)
    pods = [attrs.evolve(TRAIN, pod_uid=f"{number:03}") for number in range(120)]
    for number in range(8 * 240):
        alive = pods[number // 20 : number // 20 + 3]
        present = [each for each in alive if dice.random() < 0.7]
        writer.look({each: 1_000 * pods.index(each) + dice.randrange(1_000) for each in present})
    for look in looks(path):
        for of, sample in look.changes.items():
            if sample is not None:
                assert sample.memory_used_bytes // 1_000 == pods.index(of)
    ((kept,),) = query(path, "SELECT count(*) FROM allocations")
    assert isinstance(kept, int)
    assert 10 < kept < 60


def test_an_allocation_that_came_back_in_the_middle_of_an_hour_is_kept(path):
    writer = Clocked(path, retention_s=3 * 3600)
    idle, late = (attrs.evolve(SERVE, pod_uid=uid) for uid in ("9f00", "2d7e"))
    for number in range(6 * 240):
        minute, hour = number % 240 // 4, number // 240
        present = {idle: 1}
        if number == 0 or (hour < 3 and 20 <= minute < 40):
            present[TRAIN] = 5
        if number >= 5 * 240 + 120:
            present[late] = 7
        writer.look(present)  # type: ignore[arg-type]
    seen: dict[str | None, set[int]] = {}
    for look in looks(path):
        for of, sample in look.changes.items():
            if sample is not None:
                seen.setdefault(of.pod_uid, set()).add(sample.memory_used_bytes)
    assert seen == {"9f00": {1}, "0b5c": {5}, "2d7e": {7}}


def test_the_file_stays_within_its_size(path):
    writer = Clocked(path, retention_s=None, max_size_bytes=16 << 20)
    # An eighth, and as much less to write.
    writer.writer._max_size_bytes = limit = 2 << 20
    pods = [attrs.evolve(TRAIN, pod_uid=f"{number:04}") for number in range(63)]
    sizes = [
        writer.look(
            {
                of: Sample(2**40 + number * 1000 + at, 2**39, sm_percent=7)
                for at, of in enumerate(pods)
            }
        )
        for number in range(1_200)
    ]
    assert max(each.size_bytes for each in sizes) <= limit
    writer.writer.close()
    assert path.stat().st_size <= limit
    found = looks(path)
    assert found[0].start_ms > T0
    assert found[-1].end_ms == writer.at_ms
    # The rest has no holes.
    assert all(a.end_ms == b.start_ms for a, b in itertools.pairwise(found))
    assert len(found) > 240


def test_a_container_costs_a_bounded_number_of_rows_and_cannot_hide_behind_names(path, writer):
    """Another uuid at every look, names that are cut to the same text, texts that steer."""
    for number in range(300):
        writer.look({attrs.evolve(TRAIN, device_uuid=f"GPU-{number}"): 1})
    assert query(path, "SELECT count(*) FROM allocations") == [(64,)]
    long = [attrs.evolve(SERVE, container="x" * 5_000 + end) for end in "ab"]
    writer.look(dict(zip(long, (5 * GIB, 1), strict=True)))
    writer.look(dict(zip(long, (1, 6 * GIB), strict=True)))
    assert [max(each or 0 for each in used([look])) for look in looks(path)[-2:]] == [
        5 * GIB,
        6 * GIB,
    ]
    most = 2**63 - 1
    writer.look({attrs.evolve(SERVE, container="tr\udcff\x1b[2J"): Sample(2**64 - 1, 2**63)})
    assert Sample(most, most) in looks(path)[-1].changes.values()
    ((name,),) = query(path, "SELECT container FROM allocations ORDER BY id DESC LIMIT 1")
    assert name == r"tr\udcff\x1b[2J"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"interval_s": 0}, "interval"),
        ({"retention_s": 1}, "retention"),
        ({"max_size_bytes": 1 << 20}, "16 MiB"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(path, option, said):
    with pytest.raises(ValueError, match=said):
        RecordingWriter(path, **option)  # type: ignore[arg-type]
    assert not path.exists()


# ---- files that are not as they should be --------------------------------------------------------


def other_sqlite(path: Path) -> None:
    query(path, "CREATE TABLE customers (name TEXT)")


def other_sqlite_with_a_log(path: Path) -> None:
    query(path, "PRAGMA journal_mode = WAL")
    other_sqlite(path)


def text_file(path: Path) -> None:
    path.write_text("root:x:0:0:root:/root:/bin/sh\n" * 40)


def later_version(path: Path) -> None:
    RecordingWriter(path).close()
    query(path, "PRAGMA user_version = 7")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (other_sqlite, "not a recording"),
        (other_sqlite_with_a_log, "not a recording"),
        (text_file, "not a recording"),
        (later_version, "of version 2 or 3"),
        (os.mkfifo, "no regular file"),
    ],
)
def test_a_file_of_others_is_left_as_it_is_with_nothing_beside_it(path, make, said):
    make(path)  # type: ignore[operator]
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(RecordingError, match=said):
        RecordingWriter(path)
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(RecordingError, match=said):
        Recording(path)
    assert list(path.parent.iterdir()) == [path]
    assert not path.is_file() or path.read_bytes() == before


def test_a_second_writer_of_the_same_file_is_refused(path, writer):
    with pytest.raises(RecordingError, match="in use by another recorder"):
        RecordingWriter(path)
    writer.look()
    writer.writer.close()
    RecordingWriter(path).close()
    assert list(path.parent.iterdir()) == [path]


def test_damage_is_called_damage(path, writer):
    writer.look({attrs.evolve(TRAIN, pod_uid=str(number)): number for number in range(500)})
    writer.writer.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 8192))
    with pytest.raises(RecordingError, match="is damaged"):
        looks(path)


def test_damage_of_the_schema_is_called_damage(path, writer):
    """SQLite quotes it in its message, whatever bytes it has."""
    writer.look()
    writer.writer.close()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"whole INTEGER NOT NULL", b"whole INTEGER NOT N\x94LL", 1))
    for read in (looks, RecordingWriter):
        with pytest.raises(RecordingError, match="is damaged"):
            read(path)


@pytest.mark.parametrize(
    "broken",
    [
        "DELETE FROM allocations",
        "UPDATE looks SET at_ms = at_ms - 60000 WHERE id = 2",
        "UPDATE looks SET until_ms = 5 WHERE id = 3",
        "UPDATE looks SET until_ms = 'late' WHERE id = 2",
        "UPDATE looks SET at_ms = x'00' WHERE id = 1",
        "UPDATE looks SET until_ms = 1e999",
        "UPDATE changes SET used_bytes = 'much'",
        "UPDATE changes SET used_bytes = -2",
        "UPDATE changes SET processes = x'01'",
        "UPDATE changes SET sm_percent = 'half'",
        "UPDATE changes SET driver_sm_percent = -1e999",
        "UPDATE allocations SET pod = x'00'",
        "UPDATE allocations SET device_index = 'x'",
        "UPDATE about SET value = 'soon' WHERE key = 'interval_s'",
    ],
)
def test_rows_that_make_no_sense_are_damage(path, writer, broken):
    writer.look(times=3)
    writer.writer.close()
    query(path, broken)
    with Recording(path) as recording, pytest.raises(RecordingError, match="is damaged"):
        make_report([recording], 0, 1 << 50)


def test_a_file_that_was_begun_and_never_filled_is_filled(path):
    path.touch()
    with pytest.raises(RecordingError, match="is empty"):
        Recording(path)
    writer = Clocked(path)
    writer.look()
    assert len(looks(path)) == 1
    assert query(path, "PRAGMA auto_vacuum") == [(2,)]


def test_a_look_waits_for_no_disk_and_the_log_gives_its_space_back(writer):
    writer.look()
    connection = writer.writer._connection
    told = [
        connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("journal_mode", "synchronous", "journal_size_limit")
    ]
    # 1 is NORMAL: with a log the disk is waited for where the log is written back, now and then.
    assert told == [("wal",), (1,), (4 << 20,)]


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        Recording(tmp_path / "none.db")
    with pytest.raises(RecordingUnavailable, match=r"none/node\.db': No such file or directory"):
        RecordingWriter(tmp_path / "none" / "node.db")


def test_a_file_that_was_removed_meanwhile_is_made_anew(path, writer):
    writer.look(times=3)
    path.unlink()
    assert writer.look(times=2).look == 2
    assert seconds(looks(path)) == [(45, 60), (60, 75)]


def test_what_a_writer_that_does_not_let_go_kept_out_is_a_gap(path, writer):
    writer.look()
    other = sqlite3.connect(path, isolation_level=None)
    connection = writer.writer._connection
    # The writer waits for five seconds; a test has better things to do.
    connection.execute("PRAGMA busy_timeout = 1")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordingUnavailable, match="database is locked"):
        writer.look()
    other.execute("ROLLBACK")
    other.close()
    writer.at_ms += 60_000
    writer.look()
    assert seconds(looks(path)) == [(0, 15), (75, 90)]


def test_a_writer_killed_while_it_makes_the_file_leaves_one_that_can_be_continued(actor, tmp_path):
    dice = random.Random(3)
    source = (
        "from libhamiregion.report import RecordingWriter\nRecordingWriter(path, interval_s=15)"
    )
    for number in range(14):
        path = tmp_path / f"{number}.db"
        victim = actor()
        victim.start("evaluate", source, path=str(path))
        eventually(lambda path=path, victim=victim: path.exists() or victim.is_done())  # type: ignore[misc]
        # Making it takes some milliseconds.
        time.sleep(dice.random() * 0.02)
        victim.kill()
        Clocked(path).look()
        assert used(looks(path)) == [GIB]
        assert query(path, "PRAGMA integrity_check") == [("ok",)]
        assert query(path, "PRAGMA auto_vacuum") == [(2,)]
