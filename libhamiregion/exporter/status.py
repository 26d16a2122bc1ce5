"""How an exporter is: for pages that people look at, and for probes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.exporter.landing import LandingFacts


@attrs.frozen
class StageStatus:
    """One part of the work behind the scrapes.

    Attributes:
        name: ``containers``, ``processes``, ``doctor`` or ``scrape``.
        refreshed_at_s: When it last succeeded, Unix seconds; None if it never has.
        duration_s: How long it took the last time; None if it never ran.
        errors: How often it has failed.
        last_error: The message of the last failure, escaped; None if there was none.
    """

    name: str
    refreshed_at_s: float | None = None
    duration_s: float | None = None
    errors: int = 0
    last_error: str | None = None


@attrs.frozen
class ExporterStatus:
    """How an exporter is. Texts from outside are escaped.

    Attributes:
        version: Of this library.
        node_name: What the series call the node.
        ready: Whether the node has been looked at, so that scrapes are complete.
        roots: The directories that it watches, as given.
        root_errors: Those that cannot be listed, with the reason.
        with_region: Containers whose figures the last scrape had.
        missing: Reason to number of the containers whose figures it had not.
        nvml: The driver's last answer, a `NvmlState`'s value, or ``no_answer`` while it hangs; None
            where it is not asked.
        driver_version: The driver's version, None where it is not known.
        legacy: Whether the monitor's former names are exported too.
        scrapes: How many there have been.
        stages: The parts of the work.
    """

    version: str
    node_name: str
    ready: bool
    roots: tuple[str, ...]
    root_errors: tuple[tuple[str, str], ...]
    with_region: int
    missing: Mapping[str, int]
    nvml: str | None
    driver_version: str | None
    legacy: bool
    scrapes: int
    stages: tuple[StageStatus, ...]

    def landing(self) -> LandingFacts:
        """The same as rows for the page at ``/``."""
        from libhamiregion.exporter.landing import LandingFacts

        rows = [("Directories watched", ", ".join(self.roots))]
        rows += [("Cannot be listed", f"{root}: {error}") for root, error in self.root_errors]
        rows.append(("Containers with a region", str(self.with_region)))
        rows += [
            (f"Containers without: {reason}", str(number))
            for reason, number in sorted(self.missing.items())
        ]
        if self.nvml is not None:
            version = f", version {self.driver_version}" if self.driver_version else ""
            rows.append(("NVIDIA driver", self.nvml + version))
        rows.append(("Names", "HAMi's, former ones too" if self.legacy else "HAMi's"))
        rows.append(("Scrapes", str(self.scrapes)))
        for stage in self.stages:
            if stage.refreshed_at_s is not None:
                rows.append((f"Last time: {stage.name}", _ago(stage.refreshed_at_s)))
            if stage.last_error is not None:
                times = "once" if stage.errors == 1 else f"{stage.errors} times"
                rows.append((f"Failed {times}: {stage.name}", stage.last_error))
        return LandingFacts(self.node_name, tuple(rows))


def _ago(at_s: float) -> str:
    seconds = max(0, int(time.time() - at_s))
    return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"
