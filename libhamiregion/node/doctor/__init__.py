"""What is wrong on a node, and mending it."""

from .diagnosis import diagnose
from .findings import Explanation, Finding, FindingKind, Severity
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
