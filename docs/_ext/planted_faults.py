"""The directive ``planted-faults``: the faults of tools/faults.toml that break a promise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if sys.version_info >= (3, 11):
    import tomllib
else:  # Sphinx needs it there
    import tomli as tomllib

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FILE = Path(__file__).parents[2] / "tools/faults.toml"


class PlantedFaults(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(FILE))
        listed = nodes.bullet_list()
        for fault in tomllib.loads(FILE.read_text(encoding="utf-8"))["fault"]:
            if str(fault["promise"]) != self.arguments[0]:
                continue
            text = nodes.paragraph("", nodes.Text(f"{fault['name']}: {fault['what']}. "))
            for number, test in enumerate(fault["tests"]):
                text += [nodes.Text(", " if number else ""), nodes.literal(text=test)]
            listed += nodes.list_item("", text)
        return [listed]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("planted-faults", PlantedFaults)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
