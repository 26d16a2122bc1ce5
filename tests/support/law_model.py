"""The control law on the models of a GPU in tests/preload/law_model.c, and with a saved NVML."""

import statistics
from collections import defaultdict
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import attrs

from support.process import finished

LIMITS = (20, 50, 80)
# Points above and below the limit, by milliseconds between two samples.
BOUNDS = {20: (5, 10), 166: (5, 14), 1000: (8, 22)}
# Stamps of one sample can differ by a rounding.
SAME_SAMPLE_US = 1000


@attrs.frozen
class Played:
    """The output of the model: percent, a part of an even share, seconds, percent."""

    busy: float
    highest: float
    lowest: float
    least: float
    longest_wait_s: float
    progress: float


def play(programs: Path, **settings: int) -> Played:
    """Run the model, which is built in that directory; its comment explains the settings."""
    command = [str(programs / "law_model"), *(f"{key}={settings[key]}" for key in settings)]
    answer = finished(command, check=True).stdout
    return Played(*map(float, answer.split()))


def nvml_of(wave: dict[str, Any]) -> dict[str, int]:
    """The settings of the model with which its NVML answers as in a wave of first_contact.py."""
    seen: dict[tuple[int, int], set[int]] = defaultdict(set)
    ages_us = []
    for at_s, _, took_s, _, listed in wave["answers"]:
        for pid, stamp_us, percent in listed:
            if not seen[pid, stamp_us]:
                ages_us.append((at_s + took_s) * 1e6 - stamp_us)
            seen[pid, stamp_us].add(percent)
    periods_us = [
        after - before
        for (pid, before), (same, after) in pairwise(sorted(seen))
        if pid == same and after - before > SAME_SAMPLE_US
    ]
    assert periods_us, "NVML has no samples of processes"
    return {
        "sample_ms": round(statistics.median(periods_us) / 1000),
        "late_ms": max(0, round(min(ages_us) / 1000)),
        # A mean depends on how far back it was asked for.
        "last": int(all(len(percents) == 1 for percents in seen.values())),
    }


def replay(programs: Path, wave: dict[str, Any]) -> str:
    """Hold limits on both models by an NVML that answers as in a wave; the worst of them."""
    settings = nvml_of(wave)
    allowed = [BOUNDS[ms] for ms in BOUNDS if settings["sample_ms"] <= ms]
    above, below = allowed[0] if allowed else BOUNDS[1000]
    errors = []
    for sharing, limit in product((0, 1), LIMITS):
        played = play(
            programs, sharing=sharing, limit=limit, processes=len(wave["pids"]), **settings
        )
        errors.append(played.busy - limit)
        assert -below <= errors[-1] <= above, (settings, sharing, limit, played)
    return f"{settings}: {max(errors):+.1f} {min(errors):+.1f} points"
