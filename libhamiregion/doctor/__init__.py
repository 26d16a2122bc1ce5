"""What is wrong on a node, and its repair."""

from .catalogue import Explanation, FindingKind, Severity
from .diagnosis import diagnose, examine
from .findings import Finding, confirmed
from .repairs import Repair, repair

__all__ = [
    "Explanation",
    "Finding",
    "FindingKind",
    "Repair",
    "Severity",
    "confirmed",
    "diagnose",
    "examine",
    "repair",
]
