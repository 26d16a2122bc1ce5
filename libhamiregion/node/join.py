"""Names of `rows` for its callers until they are converted."""

from .rows import NO_ROW as NO_ROW  # noqa: PLC0414
from .rows import DeviceSums as DeviceSums  # noqa: PLC0414
from .rows import Join as Join  # noqa: PLC0414
from .rows import KnownJoin as KnownJoin  # noqa: PLC0414
