"""How much the long runs do: `make stress` all of it, `make stress STRESS=0.02` a part of each."""

import os
from typing import TypeVar

SHARE = float(os.environ.get("HAMIREGION_STRESS") or 1)

Number = TypeVar("Number", int, float)


def scaled(full: Number, least: Number | None = None) -> Number:
    """A number of rounds, cases or seconds: this run's share of the full one."""
    return max(type(full)(full * SHARE), type(full)(1) if least is None else least)
