"""Names of `slots` for their callers until they are converted."""

from .slots import SLOT_STATES, SlotStates

__all__ = ["SLOT_STATES", "SlotStates"]
