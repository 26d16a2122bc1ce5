"""What a recorder that is about to be killed writes: known to the test that looks afterwards."""

from libhamiregion.report import Reading, RecordedContainer, RecordingWriter

T0 = 1_790_812_800_000
SERIES = 40
GIB = 1 << 30


def start_writer(path: str) -> RecordingWriter:
    writer = RecordingWriter(path, interval_s=15, retention_s=3_600, max_size_bytes=4 << 20)
    writer._segment_rows = 400
    return writer


def readings_of(number: int) -> list[Reading]:
    """What look `number` says; everything changes with every look."""
    return [
        Reading(
            RecordedContainer(f"{series:04}", "train"), 0, None, number * 1000 + series, GIB,
            sm_util_percent=(number + series) % 100,
        )
        for series in range(SERIES)
    ]  # fmt: skip
