"""What the driver says: devices, their processes, and why something is not known.

nvidia-ml-py is imported when the driver is first asked.
"""

from libhamiregion.observation.driver import NvmlDevice, NvmlProcess, NvmlSample, NvmlState

from .sampler import NvmlSampler

__all__ = ["NvmlDevice", "NvmlProcess", "NvmlSample", "NvmlSampler", "NvmlState"]
