"""The order of the library's files: each imports only files before it, for types and lazily too."""

import ast
from pathlib import Path

import libhamiregion

ORDER = (
    *("_version", "_core", "layouts", "text", "units", "errors", "_handle", "models", "changes"),
    *("evidence", "edits", "lock", "slots", "region", "raw_slots", "tables"),
    *("region_set", "undo", "limiter", "__init__"),
)
# Of no one's order: built apart, the command line's start, and helpers that import none of these.
APART = {"_build", "__main__", "bounded_file", "html_template"}
PACKAGE = Path(libhamiregion.__file__).parent


def imported(path: Path) -> set[str]:
    """The library's own files that a file imports, wherever the import is."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "libhamiregion":
            names |= {"__init__"}
    return {str(name).partition(".")[0] for name in names}


def test_every_file_has_its_place() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*ORDER, *APART}


def test_each_file_imports_only_files_before_it() -> None:
    for place, name in enumerate(ORDER):
        later = imported(PACKAGE / f"{name}.py") - {*ORDER[:place], "_native"}
        assert later == set(), name
    for name in APART - {"__main__"}:
        assert imported(PACKAGE / f"{name}.py") <= {"text", "errors", "_version"}, name
