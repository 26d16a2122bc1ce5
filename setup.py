"""The part of the build that pyproject.toml cannot say: the extension and its abi3 tag."""

import os
from pathlib import Path

from setuptools import setup

# Every path of the build is relative to this directory, whatever the caller's is.
os.chdir(Path(__file__).resolve().parent)

setup(
    cffi_modules=["libhamiregion/_build.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
