"""Which processes stand behind the slots, and what the driver says of them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.identity import shadowed
from libhamiregion.exporter.labels import OTHER, LabelRows, label_text
from libhamiregion.exporter.region_metrics import sum_slots
from libhamiregion.exporter.state import ShownProcesses
from libhamiregion.exporter.text import Series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.exporter.identity import Identity
    from libhamiregion.exporter.labels import CardinalityLimiter
    from libhamiregion.exporter.state import CollectedState
    from libhamiregion.node import Container, HostProcess, Node, NodeSnapshot, NvmlSample

UNKNOWN, ALIVE, DEAD = range(3)
