"""Fake nodes, for tests of programs that look at HAMi's regions: no GPU, no HAMi, no root."""

from .fake_node import FakeContainer, FakeNode, FakeProcess

__all__ = ["FakeContainer", "FakeNode", "FakeProcess"]
