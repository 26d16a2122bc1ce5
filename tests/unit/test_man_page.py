"""The manual page that is shipped says what --help says."""

import importlib.util
from pathlib import Path

MAKER = Path(__file__).parents[2] / "docs" / "man_page.py"


def test_the_manual_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("man_page", MAKER)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.FILE.read_text() == maker.text(), "run make texts"
