"""Names of `rows` for its callers until they are converted."""

from .rows import NodeProcess as NodeProcess  # noqa: PLC0414
from .rows import ProcessDeviceRow as ProcessDeviceRow  # noqa: PLC0414
