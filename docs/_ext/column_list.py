"""The directive ``column-list``: the columns of a `RegionTable`, as a read returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from libhamiregion import RegionSet

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class ColumnList(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        with RegionSet() as regions:
            table = regions.read()
        listed = nodes.definition_list()
        for name in ("regions", "devices", "processes", "usages"):
            names = nodes.paragraph()
            for column in getattr(table, name).columns:
                names += [nodes.literal(text=column), nodes.Text(", ")]
            del names[-1]
            term = nodes.term("", "", nodes.literal(text=name))
            listed += nodes.definition_list_item("", term, nodes.definition("", names))
        return [listed]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("column-list", ColumnList)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
