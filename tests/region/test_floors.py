"""A floor of the package imports only from those under it."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import libhamiregion

PACKAGE = Path(libhamiregion.__file__).parent
FLOORS = (
    "libhamiregion",
    "libhamiregion.run",
    "libhamiregion.observation",
    "libhamiregion.node",
    "libhamiregion.services",
    "libhamiregion.doctor",
    "libhamiregion.exporter",
    "libhamiregion.plan",
    "libhamiregion.report",
    "libhamiregion.agent",
    "libhamiregion.testing",
    "libhamiregion.cli",
)
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def floor_of(module: str) -> int:
    """The highest floor whose name it bears."""
    return max(
        number
        for number, name in enumerate(FLOORS)
        if module == name or module.startswith(f"{name}.")
    )


def statements(tree: ast.AST, *, for_types: bool) -> Iterator[ast.AST]:
    """All of a module, also inside functions, with or without what is only for type checkers."""
    for node in ast.iter_child_nodes(tree):
        only_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if for_types or not only_types:
            yield node
            yield from statements(node, for_types=for_types)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, module: str, *, for_types: bool = True) -> set[str]:
    package = module.split(".")[: None if path.name == "__init__.py" else -1]
    found = set()
    for node in statements(tree_of(path), for_types=for_types):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found.update((source, *(f"{source}.{name.name}" for name in node.names)))
    return {name for name in found if name.split(".")[0] == "libhamiregion"}


def test_a_module_imports_from_its_own_floor_and_those_under_it() -> None:
    upstairs = set()
    for file in MODULES:
        parts = ("libhamiregion", *Path(file).with_suffix("").parts)
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if module != "libhamiregion.__main__":
            names = imported(PACKAGE / file, module)
            upstairs |= {(module, name) for name in names if floor_of(name) > floor_of(module)}
    assert upstairs == set()


def circles(modules: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or by others."""
    found = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for each in sorted(modules[module]):
                visit(each, [*path, module])
            done.add(module)

    for module in modules:
        visit(module, [])
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor inside functions, nor for types; a package's __init__ only re-exports."""
    modules: dict[str, set[str]] = {}
    for file in MODULES:
        parts = ("libhamiregion", *Path(file).with_suffix("").parts)
        if parts[-1] != "__init__":
            modules[".".join(parts)] = imported(PACKAGE / file, ".".join(parts))
    modules = {module: names & modules.keys() - {module} for module, names in modules.items()}
    assert circles(modules) == []


def test_only_the_reader_and_the_library_have_the_core_search_proc() -> None:
    """A process can keep a reader of its maps for ever: above, it is asked by the workers."""
    searches = {"lock_state", "recover_lock", "reap", "repair_slots"}
    found = [
        f"{file}:{node.lineno}"
        for file in MODULES
        for node in ast.walk(tree_of(PACKAGE / file))
        # The demo's processes are its own.
        if "/" in file
        and file != "cli/demo.py"
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in searches
        and "evidence" not in {each.arg for each in node.keywords}
    ]
    assert found == []
