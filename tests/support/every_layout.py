"""The fixture `layout` of files whose subject branches on it: each layout in turn."""

import pytest

from libhamiregion import Layout


@pytest.fixture(params=list(Layout), name="layout")
def every_layout(request) -> Layout:
    return request.param
