"""How much the long runs do: HAMIREGION_STRESS=1 all of it (an hour), by default a part of each."""

import os
from typing import TypeVar

SHARE = float(os.environ.get("HAMIREGION_STRESS") or 0.02)

Number = TypeVar("Number", int, float)


def scaled(full: Number, least: Number | None = None) -> Number:
    """A number of rounds, cases or seconds: this run's share of the full one."""
    return max(type(full)(full * SHARE), type(full)(1) if least is None else least)
