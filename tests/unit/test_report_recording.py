"""The recording: what is written is what is read, within its bounds, and gaps are gaps."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
from typing import TYPE_CHECKING

import attrs
import pytest

from libhamiregion.report import (
    Allocation,
    AllocationState,
    Look,
    NotARecording,
    Reading,
    RecordedContainer,
    Recording,
    RecordingDamaged,
    RecordingError,
    RecordingInUse,
    RecordingUnavailable,
    RecordingWriter,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

GIB = 1 << 30
HOUR_MS = 3_600_000
T0 = 1_790_812_800_000
STEP_MS = 15_000
ALWAYS = (0, 2**60)

TRAIN = RecordedContainer("0b5c", "train", None, None, "research", "bert-0")
SERVE = RecordedContainer("1c6d", "serve", None, None, "prod", "chat-1")


def reading(container: RecordedContainer = TRAIN, used: int = GIB, **more: object) -> Reading:
    fields: dict[str, object] = {"device_index": 0, "device_uuid": "GPU-a", **more}
    return Reading(container, memory_used_bytes=used, **fields)  # type: ignore[arg-type]


made: list[Pen] = []


class Pen:
    """A writer with clocks that a test moves."""

    def __init__(self, path: Path, **options: object) -> None:
        self.writer = RecordingWriter(path, **{"interval_s": 15, **options})  # type: ignore[arg-type]
        made.append(self)
        self.at_ms = T0
        self.running_ms = 5_000

    def look(
        self, *readings: Reading, after_ms: int = STEP_MS, jump_ms: int = 0, times: int = 1
    ) -> Written:
        for _ in range(times):
            written = self.writer.write(readings, at_ms=self.at_ms, running_ms=self.running_ms)
            self.at_ms += after_ms + jump_ms
            self.running_ms += after_ms
        return written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    """Whatever a test has opened is closed after it."""
    yield
    while made:
        made.pop().writer.close()


@pytest.fixture
def pen(path: Path) -> Pen:
    return Pen(path)


def looks(path: Path, span: tuple[int, int] = ALWAYS) -> list[Look]:
    with Recording(path) as recording:
        return list(recording.looks(*span))


def seconds(found: Sequence[Look]) -> list[tuple[float, float]]:
    return [((look.start_ms - T0) / 1000, (look.end_ms - T0) / 1000) for look in found]


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


# ---- what is written -----------------------------------------------------------------------------


def test_what_was_written_is_read_back(path: Path, pen: Pen) -> None:
    written = reading(
        memory_limit_bytes=8 * GIB,
        sm_limit_percent=50,
        sm_util_percent=37,
        processes=2,
        driver_memory_bytes=GIB + 5,
        driver_sm_percent=40,
    )
    pen.look(written, reading(SERVE, 0, device_index=3, device_uuid=None))
    with Recording(path) as recording:
        (look,) = recording.looks(*ALWAYS)
        train, serve = look.states
        assert recording.allocation(train) == Allocation(
            "research", "bert-0", "train", "0b5c", 0, "GPU-a"
        )
        assert recording.allocation(serve) == Allocation("prod", "chat-1", "serve", "1c6d", 3, None)
        assert look.states[train] == AllocationState(GIB, GIB, 8 * GIB, 50, 2, GIB + 5)
        assert look.states[serve] == AllocationState(0, 0, None)
        assert look.activity == {train: (37, 40), serve: (None, None)}
        assert recording.span_ms() == (T0, T0 + STEP_MS)
        assert recording.facts().resolution_s == 15


def test_what_stays_the_same_is_written_once_an_hour(path: Path, pen: Pen) -> None:
    assert pen.look(reading()).rows == 2
    assert pen.look(reading()).rows == 0
    assert pen.look(reading(used=2 * GIB)).rows == 1
    written = [pen.look(reading(used=2 * GIB)) for _ in range(240)]
    assert [each.began for each in written if each.began] == ["continued"]
    assert sum(each.rows for each in written) == 2
    found = looks(path)
    assert len(found) == 243
    assert [look.full for look in found].count(True) == 2


def test_a_look_holds_until_the_next(path: Path, pen: Pen) -> None:
    pen.look(reading(), times=3)
    assert seconds(looks(path)) == [(0, 15), (15, 30), (30, 45)]


def test_a_container_that_has_gone_is_gone(path: Path, pen: Pen) -> None:
    pen.look(reading(), reading(SERVE))
    pen.look(reading(SERVE))
    _, second = looks(path)
    assert list(second.states.values()) == [None]


def test_a_name_that_becomes_known_is_that_of_the_same_container(path: Path, pen: Pen) -> None:
    nameless = attrs.evolve(TRAIN, namespace=None, pod=None)
    pen.look(reading(nameless))
    pen.look(reading(TRAIN))
    pen.look(reading(nameless))
    assert query(path, "SELECT namespace, pod FROM containers") == [("research", "bert-0")]
    assert nameless.identity == TRAIN.identity


def test_the_file_can_be_read_with_sqlite_alone(path: Path, pen: Pen) -> None:
    pen.look(reading(sm_util_percent=7))
    assert query(path, "SELECT at_utc, pod, device_uuid, used_bytes FROM readable_states") == [
        ("2026-10-01 00:00:00", "bert-0", "GPU-a", GIB)
    ]
    assert query(path, "SELECT sm_percent FROM readable_activity") == [(7,)]


def test_an_idle_node_costs_a_few_bytes_per_look(pen: Pen) -> None:
    pen.look(reading(), times=2)
    before = pen.look(reading()).size_bytes
    after = pen.look(reading(), times=200).size_bytes
    assert after - before <= 200 * 16 + 4096


# ---- gaps and clocks -----------------------------------------------------------------------------


def test_looks_that_were_missed_are_a_gap(path: Path, pen: Pen) -> None:
    pen.look(reading(), times=2, after_ms=STEP_MS)
    pen.at_ms += 600_000
    pen.running_ms += 600_000
    assert pen.look(reading()).began == "gap"
    assert seconds(looks(path)) == [(0, 15), (15, 30), (630, 645)]


def test_one_late_look_is_none(path: Path, pen: Pen) -> None:
    pen.look(reading(), after_ms=29_000)
    assert pen.look(reading()).began is None
    assert seconds(looks(path)) == [(0, 29), (29, 44)]


def test_a_recorder_that_starts_again_at_once_leaves_no_gap(path: Path) -> None:
    for number in range(2):
        pen = Pen(path)
        pen.at_ms += number * 20_000
        assert pen.look(reading()).began == "start"
        pen.writer.close()
    assert seconds(looks(path)) == [(0, 20), (20, 35)]


def test_a_clock_set_forward_leaves_a_gap(path: Path, pen: Pen) -> None:
    pen.look(reading(), jump_ms=HOUR_MS)
    assert pen.look(reading()).began == "clock"
    assert seconds(looks(path)) == [(0, 15), (3615, 3630)]


def test_a_clock_that_goes_back_a_little_is_a_clock_that_was_set(path: Path) -> None:
    """Two looks never stand for the same moment, however short the interval."""
    pen = Pen(path, interval_s=0.5)
    pen.look(reading(used=1), after_ms=500, jump_ms=-600)
    assert pen.look(reading(used=2), after_ms=500).began == "clock"
    pen.look(reading(used=2), after_ms=500)
    found = looks(path)
    assert [look.start_ms for look in found] == sorted({look.start_ms for look in found})


def test_where_the_clock_was_set_back_what_was_recorded_later_counts(path: Path, pen: Pen) -> None:
    pen.look(reading(used=1), times=20)
    pen.at_ms -= 200_000
    assert pen.look(reading(used=2)).began == "clock"
    pen.look(reading(used=2), times=3)
    found = looks(path)
    again = seconds(found).index((100, 115))
    assert seconds(found)[again - 1 :][:6] == [
        (90, 100), (100, 115), (115, 130), (130, 145), (145, 160), (160, 165)
    ]  # fmt: skip
    assert list(found[again].states.values()) == [AllocationState(2, 2, None)]
    # From there on the earlier record is the only one.
    assert found[again + 4].full
    assert list(found[again + 4].states.values()) == [AllocationState(1, 1, None)]
    assert seconds(found)[-1] == (285, 300)


def test_a_clock_that_was_wrong_for_a_look_hides_nothing(path: Path, pen: Pen) -> None:
    """A look of 1970 is told of in 1970, and costs no other its time."""
    pen.look(reading(used=1), times=10)
    pen.at_ms -= T0
    assert pen.look(reading(used=2)).began == "clock"
    pen.at_ms += T0
    pen.look(reading(used=3), times=10)
    found = looks(path)
    assert [look.start_ms for look in found] == sorted(look.start_ms for look in found)
    assert (found[0].start_ms, found[0].end_ms) == (150_000, 165_000)
    expected = [(15.0 * at, 15.0 * (at + 1)) for at in range(21) if at != 10]
    assert seconds(found)[1:] == expected
    with Recording(path) as recording:
        assert recording.span_ms() == (150_000, T0 + 315_000)


def test_part_of_a_recording_begins_with_what_held_then(path: Path, pen: Pen) -> None:
    pen.look(reading(used=GIB), reading(SERVE))
    pen.look(reading(used=2 * GIB))
    pen.look(reading(used=2 * GIB), times=10)
    found = looks(path, (T0 + 50_000, T0 + 70_000))
    assert seconds(found) == [(50, 60), (60, 70)]
    assert found[0].full
    assert list(found[0].states.values()) == [AllocationState(2 * GIB, 2 * GIB, None), None]
    assert looks(path, (T0 - 100, T0)) == []
    assert looks(path, (T0 + 10 * HOUR_MS, T0 + 11 * HOUR_MS)) == []


def test_activity_of_what_is_not_there_any_more_is_forgotten(path: Path, pen: Pen) -> None:
    """Also where a look begins in the middle, with all that has been before it."""
    pen.look(reading(sm_util_percent=10))
    pen.look(reading(device_uuid=None, sm_util_percent=0))
    pen.look(reading(sm_util_percent=80), times=3)
    (look, *_) = looks(path, (T0 + 40_000, T0 + 60_000))
    with Recording(path) as recording:
        list(recording.looks(*ALWAYS))
        now = [number for number, state in look.states.items() if state is not None]
        assert [recording.allocation(number).device_uuid for number in now] == ["GPU-a"]
    assert look.activity == {now[0]: (80, None)}


# ---- bounds --------------------------------------------------------------------------------------


def hours(pen: Pen, count: int, **more: object) -> Written:
    for _ in range(count):
        written = pen.look(reading(**more), times=240)  # type: ignore[arg-type]
    return written


def test_what_is_older_than_the_retention_goes(path: Path) -> None:
    pen = Pen(path, retention_s=3 * 3600)
    pen.look(reading(SERVE))
    hours(pen, 6)
    pen.writer.close()
    with Recording(path) as recording:
        span = recording.span_ms()
        assert span is not None
        first, last = span
        assert last == pen.at_ms
        # Whole hours go, and the one that is being written stays.
        assert 3 * HOUR_MS <= last - first <= 5 * HOUR_MS
        assert next(recording.looks(first, last)).full
    assert query(path, "SELECT name FROM containers") == [("train",)]
    assert query(path, "SELECT count(*) FROM series") == [(1,)]


def test_a_wrong_clock_does_not_empty_the_recording(path: Path) -> None:
    """Retention waits until an hour has been recorded by the new clock."""
    pen = Pen(path, retention_s=24 * 3600)
    hours(pen, 2)
    pen.at_ms += 365 * 24 * HOUR_MS
    pen.look(reading(), times=3)
    pen.at_ms -= 365 * 24 * HOUR_MS
    pen.look(reading(), times=3)
    pen.writer.close()
    with Recording(path) as recording:
        found = list(recording.looks(T0, pen.at_ms))
    assert found[0].start_ms == T0
    assert all(a.end_ms == b.start_ms for a, b in itertools.pairwise(found[:480]))
    assert found[-1].end_ms == pen.at_ms


def test_a_container_that_came_back_within_an_hour_is_kept_with_what_it_used(path: Path) -> None:
    """Its series was written anew in the middle of a segment, and not at the beginning of one."""
    pen = Pen(path, retention_s=3 * 3600)
    idle = attrs.evolve(TRAIN, pod_uid="9f00", name="idle")
    back, late = SERVE, attrs.evolve(SERVE, pod_uid="2d7e", pod="late-1")
    for number in range(6 * 240):
        minute, hour = number % 240 // 4, number // 240
        present = [reading(idle)]
        if number == 0 or (hour < 3 and 20 <= minute < 40):
            present.append(reading(back, 5 * GIB))
        if number >= 5 * 240 + 120:
            present.append(reading(late, 7 * GIB))
        pen.look(*present)
    pen.writer.close()
    used: dict[str | None, set[int]] = {}
    with Recording(path) as recording:
        for look in recording.looks(*ALWAYS):
            for number, state in look.states.items():
                if state is not None:
                    pod = recording.allocation(number).pod_uid
                    used.setdefault(pod, set()).add(state.memory_used_bytes)
    assert used == {"9f00": {GIB}, back.pod_uid: {5 * GIB}, "2d7e": {7 * GIB}}


def test_no_number_is_used_again(path: Path) -> None:
    pen = Pen(path, retention_s=2 * 3600)
    pen.look(reading(), reading(SERVE))
    hours(pen, 5)
    assert query(path, "SELECT id FROM series") == [(1,)]
    pen.look(reading(), reading(SERVE))
    assert query(path, "SELECT id FROM series ORDER BY id") == [(1,), (3,)]
    assert query(path, "SELECT id FROM containers ORDER BY id") == [(1,), (3,)]


def test_series_that_nothing_names_go_and_all_others_stay(path: Path) -> None:
    """Whatever `last_look` says, as in a file that another program has written."""
    pen = Pen(path, retention_s=2 * 3600)
    pen.look(reading(), reading(SERVE))
    hours(pen, 2)
    pen.writer.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE series SET last_look = 0")
    connection.commit()
    connection.close()
    again = Pen(path, retention_s=2 * 3600)
    again.at_ms, again.running_ms = pen.at_ms, pen.running_ms
    hours(again, 4)
    assert query(path, "SELECT name FROM containers") == [("train",)]
    found = looks(path)
    assert all(state is not None for look in found for state in look.states.values())


def test_the_file_stays_within_its_size(path: Path) -> None:
    limit = 4 << 20
    pen = Pen(path, retention_s=None, max_size_bytes=limit)
    sizes = []
    tenants = [attrs.evolve(TRAIN, pod_uid=f"{number:04}") for number in range(250)]
    for number in range(500):
        written = pen.look(
            *(
                reading(each, number * 1000 + at, sm_util_percent=number)
                for at, each in enumerate(tenants)
            )
        )
        sizes.append(written.size_bytes)
    assert max(sizes) <= limit
    pen.writer.close()
    assert path.stat().st_size <= limit
    with Recording(path) as recording:
        span = recording.span_ms()
        assert span is not None
        assert span[0] > T0
        assert span[1] == pen.at_ms
        found = list(recording.looks(*span))
    # What is left has no holes.
    assert all(a.end_ms == b.start_ms for a, b in itertools.pairwise(found))
    assert len(found) > 100


def test_space_that_has_become_free_is_given_back(path: Path) -> None:
    pen = Pen(path, retention_s=2 * 3600)
    tenants = [attrs.evolve(TRAIN, pod_uid=f"{number:04}") for number in range(100)]
    for number in range(240):
        pen.look(*(reading(each, number * 1000 + at) for at, each in enumerate(tenants)))
    largest = pen.look(reading()).size_bytes
    hours(pen, 6)
    assert pen.look(reading()).size_bytes < largest // 4
    pen.writer.close()


def test_a_container_that_shows_another_uuid_at_every_look_costs_a_bounded_number_of_series(
    path: Path, pen: Pen
) -> None:
    for number in range(300):
        pen.look(reading(device_uuid=f"GPU-{number}"))
    assert query(path, "SELECT count(*) FROM series") == [(64,)]


def test_of_two_regions_that_are_called_the_same_the_one_with_more_counts(
    path: Path, pen: Pen
) -> None:
    pen.look(reading(used=5 * GIB), reading(used=GIB))
    pen.look(reading(used=GIB), reading(used=6 * GIB))
    found = [state for look in looks(path) for state in look.states.values()]
    assert found == [AllocationState(used, used, None) for used in (5 * GIB, 6 * GIB)]


def test_sizes_that_sqlite_cannot_hold_are_the_largest_that_it_can(path: Path, pen: Pen) -> None:
    pen.look(reading(used=2**64 - 1, memory_limit_bytes=2**63, sm_util_percent=2**64 - 1))
    ((used, limit),) = query(path, "SELECT used_bytes, limit_bytes FROM states")
    assert used == limit == 2**63 - 1


def test_names_that_are_no_text_are_written_escaped(path: Path, pen: Pen) -> None:
    hostile = RecordedContainer("0b5c", "tr\udcff\x1b[2J", None, None, None, None)
    pen.look(reading(hostile))
    pen.look(reading(hostile))
    assert query(path, "SELECT name FROM containers") == [(r"tr\udcff\x1b[2J",)]


def test_bounds_that_cannot_be_kept_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="interval"):
        RecordingWriter(path, interval_s=0)
    with pytest.raises(ValueError, match="retention"):
        RecordingWriter(path, retention_s=1)
    with pytest.raises(ValueError, match="4 MiB"):
        RecordingWriter(path, max_size_bytes=1 << 20)
    assert not path.exists()


# ---- files that are not as they should be --------------------------------------------------------


def test_a_second_writer_of_the_same_file_is_refused(path: Path, pen: Pen) -> None:
    with pytest.raises(RecordingInUse, match=f"process {os.getpid()} records to"):
        RecordingWriter(path)
    pen.look(reading())
    pen.writer.close()
    RecordingWriter(path).close()


def test_a_file_of_another_program_is_left_as_it_is(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotARecording, match="another program"):
        RecordingWriter(path)
    with pytest.raises(NotARecording, match="another program"):
        Recording(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_text("# a configuration file\n" * 100)
    with pytest.raises(NotARecording, match="not a recording"):
        RecordingWriter(path)
    with pytest.raises(NotARecording, match="not a recording"):
        Recording(path)
    assert path.read_text() == "# a configuration file\n" * 100


def test_a_recording_of_a_later_version_is_refused(path: Path, pen: Pen) -> None:
    pen.writer.close()
    query(path, "PRAGMA user_version = 7")
    for opened in (Recording, RecordingWriter):
        with pytest.raises(NotARecording, match="version 7; this program knows version 1"):
            opened(path)


def test_damage_is_said_to_be_damage(path: Path, pen: Pen) -> None:
    pen.look(*(reading(attrs.evolve(TRAIN, pod_uid=str(number))) for number in range(500)))
    pen.writer.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 8192))
    with pytest.raises(RecordingDamaged, match="is damaged"), Recording(path) as recording:
        list(recording.looks(*ALWAYS))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("DELETE FROM looks", "look 1, which begins a segment, is missing"),
        ("DELETE FROM looks WHERE id = 1", "look 1, which begins a segment, is missing"),
        ("DELETE FROM series", "series 1, which look 1 has, is missing"),
        ("DELETE FROM containers", "series 1, which look 1 has, is missing"),
        ("DELETE FROM states; DELETE FROM series", "series 1, which look 1 has, is missing"),
        ("UPDATE looks SET at_ms = at_ms - 60000 WHERE id = 2", "look 2 is earlier than the one"),
        ("UPDATE looks SET at_ms = 5 WHERE id = 3", "look 3 is earlier than look 1"),
    ],
)
def test_rows_that_are_missing_are_damage(path: Path, pen: Pen, broken: str, said: str) -> None:
    pen.look(reading(sm_util_percent=5), times=3)
    pen.writer.close()
    connection = sqlite3.connect(path)
    connection.executescript(broken)
    connection.close()
    with pytest.raises(RecordingDamaged, match=said), Recording(path) as recording:
        list(recording.looks(*ALWAYS))


def test_a_file_that_was_begun_and_never_filled_is_empty(path: Path) -> None:
    path.touch()
    with pytest.raises(NotARecording, match="is empty"):
        Recording(path)
    pen = Pen(path)
    pen.look(reading())
    pen.writer.close()
    assert len(looks(path)) == 1
    assert query(path, "PRAGMA auto_vacuum") == [(2,)]


def test_a_missing_recording_and_a_missing_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recording(tmp_path / "none.db")
    with pytest.raises(RecordingUnavailable, match="No such file or directory") as caught:
        RecordingWriter(tmp_path / "none" / "node.db")
    assert caught.value.path == str(tmp_path / "none" / "node.db")
    assert isinstance(caught.value, RecordingError)


def test_a_file_that_was_removed_meanwhile_is_made_anew(path: Path, pen: Pen) -> None:
    pen.look(reading(), times=3)
    path.unlink()
    assert pen.look(reading()).began == "continued"
    pen.look(reading())
    assert seconds(looks(path)) == [(45, 60), (60, 75)]


def test_what_a_writer_that_does_not_let_go_kept_out_is_a_gap(path: Path, pen: Pen) -> None:
    pen.look(reading())
    other = sqlite3.connect(path, isolation_level=None)
    # The writer waits for five seconds; a test has better things to do.
    connection = pen.writer._connection
    assert connection is not None
    connection.execute("PRAGMA busy_timeout = 1")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordingUnavailable, match="database is locked"):
        pen.look(reading())
    pen.at_ms += 60_000
    pen.running_ms += 60_000
    other.execute("ROLLBACK")
    other.close()
    assert pen.look(reading()).began == "gap"
    assert seconds(looks(path)) == [(0, 15), (75, 90)]


def test_a_closed_writer_says_so(pen: Pen) -> None:
    pen.writer.close()
    with pytest.raises(ValueError, match="closed"):
        pen.look(reading())


def test_a_copy_in_a_directory_that_cannot_be_written_is_read(
    path: Path, pen: Pen, tmp_path: Path
) -> None:
    pen.look(reading())
    pen.writer.close()
    archive = tmp_path / "archive"
    archive.mkdir()
    copy = archive / "copy.db"
    copy.write_bytes(path.read_bytes())
    copy.chmod(stat.S_IRUSR)
    archive.chmod(0o500)
    try:
        assert len(looks(copy)) == 1
    finally:
        archive.chmod(0o700)


def test_errors_can_be_sent_to_another_process() -> None:
    import pickle

    error = RecordingDamaged("it is damaged", path="/node.db")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.path) == (RecordingDamaged, "it is damaged", "/node.db")
