"""What a recorder that is about to be killed writes: known to the test that looks afterwards."""

from libhamiregion.report import Allocation, RecordingWriter, Sample

T0 = 1_790_812_800_000
ALLOCATIONS = 40
GIB = 1 << 30


def start_writer(path: str) -> RecordingWriter:
    """Make a writer whose file is small and whose runs are short: it trims all the time."""
    writer = RecordingWriter(path, interval_s=15, retention_s=3_600, max_size_bytes=16 << 20)
    writer._looks_per_run = 10
    return writer


def samples_of(number: int) -> dict[Allocation, Sample]:
    """What look `number` says; everything changes with every look."""
    return {
        Allocation(None, None, "train", f"{each:04}", 0, None): Sample(
            number * 1000 + each, GIB, sm_percent=(number + each) % 100
        )
        for each in range(ALLOCATIONS)
    }
