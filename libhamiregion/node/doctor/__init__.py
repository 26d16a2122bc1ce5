"""What is wrong on a node, and mending it."""

from .catalogue import Explanation, FindingKind, Severity
from .diagnosis import diagnose
from .findings import Finding
from .repairs import Repair, repair

__all__ = [
    "Explanation",
    "Finding",
    "FindingKind",
    "Repair",
    "Severity",
    "diagnose",
    "repair",
]
