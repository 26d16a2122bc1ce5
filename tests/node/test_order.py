"""The order of the node's files: none imports one that imports it, for types and lazily too."""

import ast
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import libhamiregion.node

PACKAGE = Path(libhamiregion.node.__file__).parent
FILES = {
    "libhamiregion.node." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
    # Those only pass names on.
    if path.name != "__init__.py"
}


def imported(name: str) -> set[str]:
    """The node's files that one of them imports, wherever the import is."""
    found = set()
    for each in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(each, ast.ImportFrom):
            module = "." * each.level + (each.module or "")
            module = resolve_name(module, name.rpartition(".")[0])
            found |= {module, *(f"{module}.{alias.name}" for alias in each.names)}
    return found & FILES.keys()


def test_no_file_imports_one_that_imports_it() -> None:
    graph = {name: imported(name) for name in FILES}
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("libhamiregion.node.processes") < order.index("libhamiregion.node.slots")
