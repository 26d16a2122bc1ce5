"""The fixture `layout` of files whose subject branches on it: each layout in turn."""

import pytest

from libhamiregion import Layout


@pytest.fixture(params=list(Layout), name="layout")
def every_layout(request: pytest.FixtureRequest) -> Layout:
    chosen: Layout = request.param
    return chosen
