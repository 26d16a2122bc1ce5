"""Where the standard library's pages have the names that ours refer to.

For builds without a network: intersphinx reads this where docs.python.org cannot be reached.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

PYTHON = "https://docs.python.org/3"
# Page, kind and names; the anchor is the name.
_NAMES = (
    ("library/functions.html", "class", "bool bytes dict float int list memoryview set str tuple"),
    (
        "library/exceptions.html",
        "exception",
        (
            "FileExistsError FileNotFoundError ImportError IndexError LookupError MemoryError"
            " ModuleNotFoundError OSError PermissionError RuntimeError TimeoutError TypeError"
            " ValueError"
        ),
    ),
    ("library/pathlib.html", "class", "pathlib.Path"),
    ("library/os.html", "class", "os.PathLike"),
    ("library/asyncio-task.html", "function", "asyncio.to_thread"),
    ("library/logging.html", "function", "logging.getLogger logging.basicConfig"),
)


def _write(path: Path) -> None:
    """Write an inventory as Sphinx has them."""
    lines = "".join(
        f"{name} py:{kind} 1 {page}#$ -\n" for page, kind, names in _NAMES for name in names.split()
    )
    head = (
        "# Sphinx inventory version 2\n# Project: Python\n# Version: 3\n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress(lines.encode()))


def _configure(app: Sphinx, config: Config) -> None:
    inventory = Path(app.outdir) / "python.inv"
    _write(inventory)
    config.intersphinx_mapping = {"python": (PYTHON, (None, str(inventory)))}


def setup(app: Sphinx) -> dict[str, Any]:
    # Before intersphinx reads its own settings.
    app.connect("config-inited", _configure, priority=100)
    return {"parallel_read_safe": True}
