"""Check the order of files (`make lint`): each uses only files below it.

Python: the library's files in their order, then the floors. No modules import each other, also not
inside functions or for type checkers. C: each file of csrc includes the headers, and calls the
functions, of files before it. Tests: helpers are in tests/support, and no test is imported; those
of libhamiregion/X/Y.py are in tests/X/test_Y.py, or where `TESTED_IN` says.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "libhamiregion"
CORE = ROOT / "csrc"
TESTS = ROOT / "tests"

# Lowest first. The directories are floors: their files may import each other.
PYTHON = (
    *("_version", "_core", "layouts", "text", "units", "errors", "bounded_file", "html_template"),
    *("_handle", "models", "changes", "evidence", "edits", "lock", "slots", "region", "raw_slots"),
    *("tables", "region_set", "undo", "limiter", "__init__"),
    *("run", "observation", "node", "services", "doctor", "exporter", "plan", "report", "agent"),
    *("testing", "cli"),
)
# It is built apart, and the command line's start.
APART = {"_build", "__main__"}
# The reader's workers ask processes. The demo's processes are its own.
SEARCHES = {"lock_state", "recover_lock", "reap", "repair_slots"}
MAY_SEARCH = "cli/demo.py"

C = (
    *("layout", "base", "guard", "proc", "search", "identify", "handles", "byte_lock", "fields"),
    *("mappers", "slot_table", "lock", "evidence", "table_view", "deaths", "recovery", "reap"),
    *("orphans", "attach", "accounting", "region", "snapshot", "read_set", "edit", "create"),
    "limiter",
)
# What these declare is found by the file that defines it.
PUBLIC_HEADERS = {"api.h", "region.h"}
HEADER_OF = {
    "internal.h": "base",
    "layout_rows.h": "layout",
    "lock.h": "byte_lock",
    "slots.h": "slot_table",
    "testpoint.h": "base",
}

# Fakes, and what is started by its path: the programs of clients, what `make cluster` builds.
HELPERS = (
    "support",
    "fake_cuda",
    "fake_kubernetes",
    "fake_nvml",
    "cluster",
    "gpu",
    "preload/clients",
)

# Tests of the library's own files, and of what has no file of its name.
LIBRARY_TESTS = "region"
TESTED_IN = {
    "changes": "region/test_edits",
    "raw_slots": "node/test_host_attacks",
    "html_template": "report/test_tables",
    "run/driver": "run/test_environment",
    "run/errors": "run/test_environment",
    "run/libraries": "run/test_environment",
    "run/limits": "run/test_selection",
    "run/program": "cli/test_run",
    "observation/containers": "node/test_directories",
    "observation/driver": "observation/test_json",
    "observation/evidence": "observation/test_json",
    "observation/model": "observation/test_json",
    "observation/names": "node/test_cgroups",
    "observation/share": "observation/test_without_region",
    "observation/stored_table": "observation/test_json",
    "observation/suspicions": "doctor/test_diagnosis",
    "node/nvml/driver": "node/nvml/test_states",
    "node/suspects": "doctor/test_diagnosis",
    "doctor/context": "doctor/test_diagnosis",
    "doctor/findings": "doctor/test_catalogue",
    "exporter/legacy": "exporter/test_labels",
    "exporter/scrape": "exporter/test_exporter",
    "plan/plan": "plan/test_plan_file",
    "report/history": "report/test_recording",
    "report/models": "report/test_aggregate",
    "report/prices": "report/test_aggregate",
    "report/writer": "report/test_recording",
    "testing/fake_gpus": "testing/test_fake_node",
    "testing/process": "testing/test_fake_node",
    "cli/failures": "cli/test_app",
    "cli/format": "cli/test_tables",
    "cli/options": "cli/test_targets",
    "cli/output": "cli/test_tables",
    "cli/terminal": "cli/test_tables",
    "cli/verbs": "cli/test_help",
    "cli/views": "cli/test_observe",
}


def module_of(path: Path) -> str:
    """The name of a module within the package, with `__init__` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, path: Path) -> Iterator[str]:
    """The package's modules and names that a file imports, wherever the import is."""
    within = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ("libhamiregion", *within)[: len(within) + 2 - node.level] if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            names = [source, *(f"{source}.{each.name}" for each in node.names)]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "libhamiregion":
                yield name.partition(".")[2] or "__init__"


def python_faults() -> Iterator[str]:
    """What is wrong with the order of the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    modules = {module_of(path): path for path in paths}
    tops = {name.partition(".")[0] for name in modules} - APART
    yield from (f"{name} has no place in the order" for name in sorted(tops ^ set(PYTHON)))
    uses: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = {
            each if each in modules else each.rpartition(".")[0]
            for each in imported(trees[path], path)
        }
        # A name of the library itself is from its __init__.
        found = {each or "__init__" for each in found} & modules.keys() - {name}
        if path.name != "__init__.py":
            uses[name] = found
        top = name.partition(".")[0]
        if top in PYTHON:
            places = {each: each.partition(".")[0] for each in found}
            yield from (
                f"{name} imports {each}, which is above it"
                for each, place in sorted(places.items())
                if place
                not in PYTHON[: PYTHON.index(top) + ("." in name or path.parent != PACKAGE)]
            )
        yield from (
            f"{name} line {call.lineno} has the core search /proc: pass evidence"
            for call in ast.walk(trees[path])
            if path.parent != PACKAGE
            and path != PACKAGE / MAY_SEARCH
            and isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in SEARCHES
            and "evidence" not in {each.arg for each in call.keywords}
        )
    yield from circles(uses)


def circles(uses: dict[str, set[str]]) -> Iterator[str]:
    """Modules that import each other, directly or by others; a package's __init__ re-exports."""
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> Iterator[str]:
        if name in way:
            yield " -> ".join([*way[way.index(name) :], name])
        elif name not in done and name in uses:
            for each in sorted(uses[name]):
                yield from visit(each, (*way, name))
            done.add(name)

    for name in sorted(uses):
        yield from visit(name, ())


def c_faults() -> Iterator[str]:
    """What is wrong with the order of csrc."""
    texts = {
        path: re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for path in sorted(CORE.glob("*.[ch]"))
    }
    rank = {name: number for number, name in enumerate(C)}
    files = {path.stem for path in texts if path.suffix == ".c"}
    yield from (f"csrc/{name}.c has no place in the order" for name in sorted(files ^ set(C)))
    home: dict[str, str] = {}
    for path, text in texts.items():
        if path.name not in PUBLIC_HEADERS:
            for name in re.findall(r"^\w[^;{}()#]*\b(hr_\w+)\([^;{}]*\)\s*\{", text, re.MULTILINE):
                home[name] = HEADER_OF.get(path.name, path.stem)
    for path, text in texts.items():
        own = HEADER_OF.get(path.name, path.stem)
        if path.name in PUBLIC_HEADERS or own not in rank:
            continue
        for header in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE):
            place = HEADER_OF.get(header, Path(header).stem)
            if header not in PUBLIC_HEADERS and rank[place] > rank[own]:
                yield f"csrc/{path.name} includes {header}, which is above it"
        if path.suffix == ".c":
            for name in sorted(set(re.findall(r"\b(hr_\w+)\(", text)) & home.keys()):
                if rank[home[name]] > rank[own]:
                    yield f"csrc/{path.name} calls {name} of {home[name]}.c, which is above it"


def test_faults() -> Iterator[str]:
    """What tests take from elsewhere than tests/support."""
    for path in sorted(TESTS.rglob("*.py")):
        within = path.relative_to(TESTS)
        if re.search(r"^\s*(from|import) (\w+\.)*test_\w+ ?", path.read_text(), re.MULTILINE):
            yield f"tests/{within} imports a test"
        is_test = path.name.startswith("test_") or path.stem in {"conftest", "__init__"}
        if not is_test and not any(map(within.is_relative_to, HELPERS)):
            yield f"tests/{within} is a helper: it belongs in tests/support"
    modules = {
        path.relative_to(PACKAGE).with_suffix("").as_posix()
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("_")
    }
    for module in sorted(modules | TESTED_IN.keys()):
        floor, _, name = module.rpartition("/")
        own = TESTED_IN.get(module, f"{floor or LIBRARY_TESTS}/test_{name}")
        if module not in modules or not (TESTS / f"{own}.py").is_file():
            yield f"libhamiregion/{module}.py and tests/{own}.py: one of them is not there"


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found = [*python_faults(), *c_faults(), *test_faults()]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
