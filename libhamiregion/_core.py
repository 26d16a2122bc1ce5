"""The compiled core, refused unless it was built from these very sources.

Everything below this module is hazardous: raw pointers and C codes. Import `ffi` and `lib` from
here, never from `_native`.
"""

from importlib import import_module
from typing import Any

from ._version import __version__

# By name: what cffi compiled has no types to import.
_native = import_module("._native", __package__)
ffi: Any = _native.ffi
lib: Any = _native.lib

built_from = ffi.string(lib.hr_core_version()).decode("ascii")
if built_from != __version__:
    raise ImportError(
        f"libhamiregion {__version__} found a compiled core of version {built_from} "
        f"({_native.__file__}); reinstall libhamiregion so that the two come from one build"
    )
