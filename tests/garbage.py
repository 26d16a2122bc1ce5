"""What was read before the tests stays to the end: no collection of garbage goes through it.

It is more than a million objects, and most of what a test makes is gone without a collection.
"""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hardly anything that is made meanwhile is garbage; that is looked for once, at the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
