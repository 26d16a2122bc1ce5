"""What is wrong on a node, and mending it."""

from .diagnosis import diagnose, repair
from .findings import Explanation, Finding, FindingKind, Severity
from .repairs import Repair

__all__ = [
    "Explanation",
    "Finding",
    "FindingKind",
    "Repair",
    "Severity",
    "diagnose",
    "repair",
]
