"""What the driver says: devices, their processes, and why something is not known.

nvidia-ml-py is imported when the driver is first asked.
"""

from .models import NvmlDevice, NvmlProcess, NvmlSample
from .sampler import NvmlSampler
from .states import NvmlState

__all__ = ["NvmlDevice", "NvmlProcess", "NvmlSample", "NvmlSampler", "NvmlState"]
