"""What the driver says of processes, without regions: the two lists of `hamiregion ps --nvml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Group
from rich.text import Text

from libhamiregion import format_size
from libhamiregion.node import NvmlState, Selector
from libhamiregion.text import printable

from .node_words import shortened, word
from .output import as_plain
from .plain import aligned, size_word
from .render import QUIET, columns
from .wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from libhamiregion.node import NvmlProcess, NvmlSample, NvmlSampler, NvmlUtilization

_UTILISATION = ("SM", "MEM", "ENC", "DEC")
_ELSEWHERE = (
    "this is not the host's pid namespace: the driver may hide processes, and the pids of one list"
    " may be others than those of the other"
)


@attrs.frozen
class _Device:
    """A device as `Selector` compares it."""

    index: int
    uuid: str | None


@attrs.frozen
class DriverPicture:
    """Both lists at one time.

    Attributes:
        sample: What the driver said.
        processes: Its processes, with names; raw text.
        samples: The samples of the last second.
    """

    sample: NvmlSample
    processes: Sequence[NvmlProcess]
    samples: Sequence[NvmlUtilization]
    warnings: tuple[str, ...] = ()

    @property
    def failure(self) -> str | None:
        """Why the driver could not be asked."""
        sample = self.sample
        if sample.state is NvmlState.OK:
            return None
        return sample.state.explanation if sample.fault is None else sample.fault.message

    @property
    def notes(self) -> tuple[str, ...]:
        """What the driver did not answer, and whom it may not show."""
        if self.sample.state is not NvmlState.OK:
            return ()
        notes: dict[str, None] = {}
        for device in self.sample.devices:
            faults = [
                *device.faults,
                *(fault for mig in device.mig_devices for fault in mig.faults),
            ]
            notes.update((f"GPU {device.index}: {fault.message}", None) for fault in faults)
        return (*notes, *(() if self.sample.sees_all_processes else (_ELSEWHERE,)))

    def as_object(self) -> dict[str, Any]:
        """The picture for programs; see the help of `hamiregion ps`."""
        driver = {
            "state": self.sample.state.value,
            "message": self.failure,
            "version": self.sample.driver_version,
        }
        return {
            "taken_at_ns": self.sample.taken_at_ns,
            "driver": driver,
            "devices": [as_plain(device) for device in self.sample.devices],
            "processes": [as_plain(process) for process in self.processes],
            "samples": [as_plain(sample) for sample in self.samples],
        }

    def as_text(self) -> str:
        """One line per process and device; after an empty line, one per sample."""
        processes = [["GPU", "PID", "KIND", "MEM-USED", *_UTILISATION, "UUID", "NAME"]]
        for process in self.processes:
            used = process.memory_used_bytes
            processes.append(
                [
                    str(process.device_index),
                    str(process.pid),
                    ",".join(process.kinds) or NOTHING,
                    NOTHING if used is None else size_word(used),
                    *_percents(process, "%"),
                    NOTHING if process.device_uuid is None else word(process.device_uuid),
                    # The last column: its blanks split nothing.
                    NOTHING if process.name is None else printable(process.name),
                ]
            )
        samples = [["GPU", "PID", "AGE", *_UTILISATION]]
        samples += [
            [
                str(sample.device_index),
                str(sample.pid),
                f"{self._age_s(sample):.2f}s",
                *_percents(sample, "%"),
            ]
            for sample in self.samples
        ]
        return aligned(processes) + "\n" + aligned(samples)

    def as_view(self, width: int) -> RenderableType:  # noqa: ARG002 (as all pictures)
        """Two tables."""
        if self.failure is not None:
            return Text(printable(self.failure), style=QUIET)
        processes = columns()
        for name in ("GPU", "PID"):
            processes.add_column(name, justify="right", no_wrap=True)
        processes.add_column("kind", no_wrap=True)
        for name in ("used", *_UTILISATION):
            processes.add_column(name, justify="right", no_wrap=True)
        processes.add_column("name")
        for process in self.processes:
            used = process.memory_used_bytes
            processes.add_row(
                str(process.device_index),
                Text(str(process.pid), style="bold"),
                "+".join(process.kinds) or NOTHING,
                NOTHING if used is None else format_size(used),
                *_percents(process, " %"),
                shortened(NOTHING if process.name is None else printable(process.name)),
            )
        samples = columns()
        for name in ("GPU", "PID", "age", *_UTILISATION):
            samples.add_column(name, justify="right", no_wrap=True)
        for sample in self.samples:
            samples.add_row(
                str(sample.device_index),
                Text(str(sample.pid), style="bold"),
                f"{self._age_s(sample):.2f} s",
                *_percents(sample, " %"),
            )
        return Group(
            processes if self.processes else Text("No process uses a GPU.", style=QUIET),
            Text(),
            samples if self.samples else Text("No samples of the last second.", style=QUIET),
        )

    def _age_s(self, sample: NvmlUtilization) -> float:
        return max(0.0, self.sample.taken_at_ns / 1e9 - sample.sampled_at_us / 1e6)


def driver_object(sample: NvmlSample | None, gap: str | None) -> dict[str, Any] | None:
    """Whether the driver answered, for programs; None where it was not asked."""
    if sample is None:
        return None
    return {"state": sample.state.value, "message": gap, "version": sample.driver_version}


def driver_picture(sampler: NvmlSampler, device: str | None) -> DriverPicture:
    """Ask the driver; only about the devices of that index or uuid, if given."""
    sample = sampler.sample()
    selector = Selector(device=device)

    def chosen(rows: Iterable[Any]) -> list[Any]:
        return [
            row
            for row in rows
            if selector.matches_device(_Device(row.device_index, row.device_uuid))
        ]

    processes = sampler.process_view(sample=sample)
    return DriverPicture(sample, chosen(processes), chosen(sampler.sample_view(sample=sample)))


def _percents(row: NvmlProcess | NvmlUtilization, unit: str) -> list[str]:
    figures = (
        row.sm_util_percent,
        row.memory_util_percent,
        row.enc_util_percent,
        row.dec_util_percent,
    )
    return [NOTHING if figure is None else f"{figure}{unit}" for figure in figures]
