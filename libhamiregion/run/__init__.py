"""Programs under a region: a GPU budget for any CUDA program, without HAMi."""

from .environment import environment
from .errors import LaunchError
from .program import run

__all__ = ["LaunchError", "environment", "run"]
