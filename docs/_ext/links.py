"""Links from docstrings and signatures to where this documentation has the object.

Public names are documented where users import them, ``libhamiregion.Region``, and defined
elsewhere, ``libhamiregion.region.Region``; references by either name end at the former. Names of
other packages, and types that users do not make, stay code without a link.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sphinx.roles import XRefRole
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

ROLE = "link-or-code"
PACKAGE = "libhamiregion"
# Where users import from, and so where things are documented.
FLOORS = ("run", "node", "exporter", "plan", "report", "agent")
MODULES = (PACKAGE, *(f"{PACKAGE}.{floor}" for floor in FLOORS))


class LinkOrCode(XRefRole):
    """A reference to any Python object, which need not exist."""

    # `NAME_<i>` is a name in full, not the title of a link to i.
    explicit_title_re = re.compile("(?!)")

    def __init__(self) -> None:
        super().__init__(fix_parens=False)

    def process_link(
        self,
        env: BuildEnvironment,
        refnode: nodes.Element,
        has_explicit_title: bool,
        title: str,
        target: str,
    ) -> tuple[str, str]:
        refnode["refdomain"] = ""
        refnode["reftype"] = ROLE
        refnode["py:module"] = env.ref_context.get("py:module")
        refnode["py:class"] = env.ref_context.get("py:class")
        return super().process_link(env, refnode, has_explicit_title, title, target)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Answer what no domain could."""
    if node["reftype"] != ROLE and node.get("refdomain") != "py":
        return None
    target: str = node["reftarget"].removesuffix("()")
    domain = env.domains["py"]
    is_ours = target.startswith(f"{PACKAGE}.")
    if is_ours:
        target = target.rpartition(".")[2]
    for module in dict.fromkeys((node.get("py:module") or PACKAGE, *MODULES)):
        found = domain.find_obj(env, module, node.get("py:class"), target, None, 1)
        # `close` is a method of several classes: outside of one it means none in particular.
        if len(found) == 1:
            name, entry = found[0]
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content, name
            )
    # A page that names something of this package that is not there is a mistake.
    return None if is_ours and node["reftype"] != ROLE else content


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role(ROLE, LinkOrCode())
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
