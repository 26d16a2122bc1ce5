"""Plant random plausible faults in a copy of a tree, and record those that no test sees.

    python tools/mutants.py --seed 7 --count 300 [--tree TREE] [--results FILE]
    python tools/mutants.py --summary [--results FILE]

Each fault is one changed line that compiles to something else. The tests that know the changed file
best run against it in one process, the quick ones first, up to the first failure or the time limit.
A test that fails must pass without the fault. Floors have equal parts of the count and take turns,
so that a run that is cut short is fair to all. Each judged fault is one line of the results file;
a second run with the same seed and tree continues. `make` sets up an environment in the copy.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import random
import re
import runpy
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FLOORS: Final = {
    "csrc": "csrc/*.c",
    "preload": "csrc/preload/*.c",
    "library": "libhamiregion/*.py",
    **{
        floor: f"libhamiregion/{floor}/**/*.py"
        for floor in (
            *("observation", "node", "doctor", "exporter", "plan", "report", "agent", "run"),
            "cli",
        )
    },
}
FILES_OF_TESTS: Final = 8
NOT_RUN: Final = {"packaging", "cluster", "gpu"}
# Runs each program in C as a test.
C_TESTS: Final = "test_c_core.py"
# Tests of one process, which are quick.
QUICK: Final = ("tests/region/", "tests/run/test_selection.py")


class Mutant(NamedTuple):
    """One changed line of one file."""

    floor: str
    path: str
    line: int
    kind: str
    text: str


OPPOSITES: Final = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
)
SWAPPED_OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    **dict(OPPOSITES),
    **{other: one for one, other in OPPOSITES},
    ast.Mult: ast.FloorDiv,
}
SWAPPED_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def faults_in_node(node: ast.AST) -> Iterator[ast.AST]:
    """Plausible mistakes in place of a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED_OPERATORS:
        swapped = SWAPPED_OPERATORS[type(node.ops[0])]()
        yield ast.Compare(node.left, [swapped, *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPPED_OPERATORS[type(node.op)](), node.values)
        yield ast.BoolOp(node.op, node.values[1:]) if len(node.values) > 2 else node.values[0]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED_OPERATORS:
        yield ast.BinOp(node.left, SWAPPED_OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Name) and node.id in SWAPPED_NAMES:
        yield ast.Name(SWAPPED_NAMES[node.id])
    elif isinstance(node, ast.Return) and ast.unparse(node) not in {"return", "return None"}:
        yield ast.Return(None)
    elif (
        isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
    ) or isinstance(node, (ast.Continue, ast.Raise, ast.AugAssign)):
        yield ast.Pass()


def code_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no annotations, nothing that is for type checkers only."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from code_of(child)


def faults_in_python(source: str) -> Iterator[tuple[int, str, str]]:
    """Line numbers, kinds of faults, and the line with the fault in it."""
    lines = source.encode().splitlines(keepends=True)
    for node in code_of(ast.parse(source)):
        # In a formatted string nodes have no place of their own before Python 3.12.
        if not hasattr(node, "lineno") or node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        for fault in faults_in_node(node):
            text = ast.unparse(ast.fix_missing_locations(fault)).encode()
            if not isinstance(fault, ast.stmt):
                text = b"(" + text + b")"
            changed = line[: node.col_offset] + text + line[node.end_col_offset :]
            yield node.lineno, type(node).__name__, changed.decode()


FAULTS_IN_C: Final = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r" < ", " <= "),
        (r" <= ", " < "),
        (r" > ", " >= "),
        (r" >= ", " > "),
        (r" == ", " != "),
        (r" != ", " == "),
        (r" && ", " || "),
        (r" \|\| ", " && "),
        (r" \+ ", " - "),
        (r" - ", " + "),
        (r"\bif \((?=.*\) ?\{?$)", "if (!("),
        (r"(?<=[( ])!(?=\w)", ""),
        (r"\+\+", "--"),
        (r"\b0\b", "1"),
        (r"\b1\b", "2"),
        (r"\btrue\b", "false"),
        (r"\bfalse\b", "true"),
        (r"^(\t| {4,})(\w+\(.*\);|\w.* [|&+-]?= .*;)$", r"\1;"),
        (r"^(\t| {4,})(continue|break);$", r"\1;"),
        (r"memory_order_(acquire|release|acq_rel|seq_cst)", "memory_order_relaxed"),
    )
]


EXPECTED: Final = re.compile(r"__builtin_expect\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*, (?=[01]\))")


def hints_in(line: str) -> set[int]:
    """Places of numbers that say which branch is likely: another number is no fault."""
    return {found.end() for found in EXPECTED.finditer(line)}


def faults_in_c(source: str) -> Iterator[tuple[int, str, str]]:
    """Line numbers, kinds of faults, and the line with the fault in it."""
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        if line.lstrip().startswith(("/", "*", "#")):
            continue
        code = line.partition("/*")[0].rstrip()
        for pattern, text in FAULTS_IN_C:
            for found in pattern.finditer(code):
                if found.start() in hints_in(line):
                    continue
                changed = line[: found.start()] + found.expand(text) + line[found.end() :]
                if text == "if (!(":
                    changed = re.sub(r"\)( ?\{?)$", r"))\1", changed)
                yield number, " ".join(found[0].split())[:24], changed


def names_in_python(_: Path, path: Path) -> set[str]:
    """Functions and classes of a Python file, and its own name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    defined = {node.name for node in nodes if isinstance(node, kinds)}
    return {name for name in defined if not name.startswith("__")} | {path.stem}


def names_in_c(tree: Path, path: Path) -> set[str]:
    """Functions that a C file defines, Python functions that call them, and its own name.

    A file without callers in Python takes in the C files that call it. Hooks have CUDA's names.
    """
    defined = {
        each: set(
            re.findall(r"^\w[\w \*]*?\b((?:hr_|cu)\w+)\(", each.read_text("utf-8"), re.MULTILINE)
        )
        for each in path.parent.glob("*.c")
    }
    names = defined[path]
    while not (callers := python_callers(tree, names)):
        calls = re.compile(rf"\b(?:{'|'.join(names)})\(")
        above = [each for each in defined if calls.search(each.read_text(encoding="utf-8"))]
        more = names.union(*(defined[each] for each in above))
        if more == names:
            break
        names = more
    return names | callers | {path.stem}


def python_callers(tree: Path, functions: set[str]) -> set[str]:
    """Python functions that call any of these C functions."""
    calls = re.compile(rf"\blib\.(?:{'|'.join(functions)})\b")
    texts = [each.read_text("utf-8") for each in (tree / "libhamiregion").glob("*.py")]
    return {
        node.name
        for text in texts
        if functions and calls.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("__")
        and calls.search(ast.get_source_segment(text, node) or "")
    }


@functools.cache
def words_of_tests(tree: Path) -> dict[str, set[str]]:
    """Words of each file of tests, and of each C program of the core's tests."""
    found = {}
    (c_tests,) = (tree / "tests").rglob(C_TESTS)
    for test in (*(tree / "tests").rglob("test_*.py"), *(tree / "tests/c").glob("test_*.c")):
        if not NOT_RUN.intersection(test.parts):
            name = test.relative_to(tree).as_posix()
            if test.suffix == ".c":
                name = f"{c_tests.relative_to(tree)}::test_program[{test.stem}]"
            found[name] = set(re.findall(r"\w+", test.read_text(encoding="utf-8")))
    return found


@functools.cache
def tests_of(tree: Path, path: str) -> list[str]:
    """Tests that know a file best: by its names in them, each worth more the fewer have it."""
    words = words_of_tests(tree)
    names = (names_in_c if path.endswith(".c") else names_in_python)(tree, tree / path)
    worth = {name: 1 / (1 + sum(name in each for each in words.values())) for name in names}
    stem = Path(path).stem.strip("_")
    scores = Counter(
        {
            test: sum(worth[name] for name in names & found)
            # The file's own test, by its name.
            + (stem in re.split(r"[^a-z0-9]+", test) or f"test_{stem}" in test)
            for test, found in words.items()
        }
    )
    best = [test for test, score in scores.most_common(FILES_OF_TESTS) if score]
    # Programs in C come last: they have to be compiled.
    return sorted(best, key=lambda test: (C_TESTS in test, not test.startswith(QUICK)))


class Core:
    """The extension of a copy of a tree: one changed file is compiled, and all are linked."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._objects = root / "build" / "mutants"
        self._objects.mkdir(parents=True, exist_ok=True)
        built = runpy.run_path(str(root / "libhamiregion" / "_build.py"))["ffi"]
        *_, options = built._assigned_source
        self._options = [
            *options["extra_compile_args"],
            *(f"-I{each}" for each in (*options["include_dirs"], sysconfig.get_path("include"))),
            *(f"-D{name}={value}" for name, value in options["define_macros"]),
        ]
        generated = self._objects / "_native.c"
        built.emit_c_code(str(generated))
        for source in (generated, *(root / "csrc").glob("*.c")):
            if self.compile(source) is None:
                raise SystemExit(f"{source} does not compile")

    def compile(self, source: Path) -> bytes | None:
        """Return the object of a file; None if it does not compile."""
        target = self._objects / f"{source.stem}.o"
        command = ["cc", *self._options, "-fPIC", "-w", "-c", str(source), "-o", str(target)]
        return target.read_bytes() if self._is_done(command) else None

    def link(self) -> bool:
        """Link the extension again."""
        (target,) = (self._root / "libhamiregion").glob("_native.*so")
        # A new file: a process that maps the former keeps it.
        linked = self._objects / "linked"
        objects = map(str, sorted(self._objects.glob("*.o")))
        is_done = self._is_done(["cc", "-shared", "-pthread", *objects, "-o", str(linked)])
        if is_done:
            linked.replace(target)
        return is_done

    def _is_done(self, command: list[str]) -> bool:
        done = subprocess.run(command, cwd=self._root, capture_output=True, check=False)
        return done.returncode == 0


class Copy:
    """A copy of a tree's HEAD, in which one fault at a time is planted."""

    def __init__(self, tree: Path, root: Path, limit_s: int) -> None:
        self.root = root
        self._limit_s = limit_s
        # Tests that fail without a fault.
        self._unsound: set[str] = set()
        root.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=tree, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "--extract"], cwd=root, input=archive.stdout, check=True)
        subprocess.run(["make", "--silent", ".venv/.installed"], cwd=root, check=True)
        pip = [".venv/bin/python", "-m", "pip", "install", "--quiet", "--constraint"]
        # For the libraries of `run`, which setup.py builds.
        subprocess.run([*pip, "constraints.txt", "setuptools"], cwd=root, check=True)

    @functools.cached_property
    def _core(self) -> Core:
        return Core(self.root)

    def _build(self, path: Path) -> bytes | None:
        if path.suffix == ".py":
            return path.read_bytes()
        if path.parent.name == "preload":
            return self._build_preload(path.stem)
        built = self._core.compile(path)
        return built if built is not None and self._core.link() else None

    def _build_preload(self, name: str) -> bytes | None:
        command = [".venv/bin/python", "setup.py", "--quiet", "build_ext", "--inplace"]
        env = {**os.environ, "HAMIREGION_TEST_BUILD": "1"}
        done = subprocess.run(command, cwd=self.root, capture_output=True, check=False, env=env)
        (built,) = self.root.glob(f"build/temp*/preload/preload/{name}.o")
        return built.read_bytes() if done.returncode == 0 else None

    def _first_failure(self, tests: Iterable[str]) -> str | None:
        """Return the first test that fails; None if all pass or the time is over."""
        skip = [f"--deselect={each}" for each in self._unsound]
        command = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", f"--timeout={self._limit_s // 2}", *skip, *tests]
        try:
            ran = subprocess.run(
                command, cwd=self.root, capture_output=True, check=False, timeout=self._limit_s
            )
        except subprocess.TimeoutExpired:
            return None
        # 5: all tests were left out.
        if ran.returncode in {0, 5}:
            return None
        said = ran.stdout.decode(errors="replace")
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return found[1] if found else f"exit code {ran.returncode}"

    def _seen_by(self, path: Path, sound: bytes, faulty: bytes, tests: list[str]) -> str | None:
        """Return the test that sees a fault, "broken" if it is no fault, None if it survives."""
        built = self._build(path)
        path.write_bytes(faulty)
        try:
            # A fault that compiles to the same is none.
            if self._build(path) in {None, built}:
                return "broken"
            return self._first_failure(tests)
        finally:
            path.write_bytes(sound)
            self._build(path)

    def verdict(self, mutant: Mutant) -> tuple[str, str]:
        """Return killed, survived or broken, and the test that failed."""
        path = self.root / mutant.path
        tests = tests_of(self.root, mutant.path)
        sound = path.read_bytes()
        lines = sound.decode().splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.text
        for _ in range(4 if tests else 0):
            seen = self._seen_by(path, sound, "".join(lines).encode(), tests)
            if seen is None:
                return "survived", ""
            if not seen.startswith("tests/"):
                return "broken", seen
            # A parameter can have spaces in it, at which its name was cut.
            if not self._first_failure([seen.partition("[")[0]]):
                return "killed", seen
            self._unsound.add(seen)
        return "broken", "no test that passes without the fault"


def chosen(tree: Path, seed: int, count: int) -> list[Mutant]:
    """Faults of a seed: one for each line, floors in turn."""
    of_floors = []
    for floor, pattern in FLOORS.items():
        order = []
        for path in sorted(tree.glob(pattern)):
            faults = faults_in_c if path.suffix == ".c" else faults_in_python
            name = path.relative_to(tree).as_posix()
            found = faults(path.read_text(encoding="utf-8"))
            order += [Mutant(floor, name, *fault) for fault in found]
        random.Random(f"{seed} {floor}").shuffle(order)
        # A line with many operators is no more worth than another.
        of_lines = {(each.path, each.line): each for each in order}
        of_floors.append(list(of_lines.values())[: count // len(FLOORS)])
    return [each for turn in zip(*of_floors, strict=True) for each in turn]


def summary(results: Path) -> None:
    """Print verdicts by tree, seed and floor."""
    rows = [line.split("\t") for line in results.read_text().splitlines()]
    verdicts = Counter((*row[:3], row[6]) for row in rows)
    print("tree          seed  floor      judged  killed  survived  broken")
    for tree, seed, floor in sorted({row[:3] for row in verdicts}):
        killed, survived, broken = (
            verdicts[tree, seed, floor, each] for each in ("killed", "survived", "broken")
        )
        judged = killed + survived
        share = f"{survived} ({100 * survived // max(judged, 1)} %)"
        print(f"{tree:12}  {seed:4}  {floor:9}  {judged:6}  {killed:6}  {share:>9}  {broken:6}")


def main() -> int:
    """Judge the faults of a seed that the results file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=300, help="faults of all floors")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--results", type=Path, default=Path("mutants.tsv"))
    parser.add_argument("--limit", type=int, default=240, help="seconds for the tests of a fault")
    parser.add_argument("--summary", action="store_true", help="print the results and exit")
    asked = parser.parse_args()
    if asked.summary:
        summary(asked.results)
        return 0
    head = ["git", "rev-parse", "--short", "HEAD"]
    ran = subprocess.run(head, cwd=asked.tree, check=True, capture_output=True, text=True)
    commit = ran.stdout.strip()
    copy = Copy(asked.tree, Path(tempfile.gettempdir(), f"mutants-{commit}"), asked.limit)
    known = asked.results.read_text().splitlines() if asked.results.exists() else []
    with asked.results.open("a", encoding="utf-8") as results:
        for mutant in chosen(copy.root, asked.seed, asked.count):
            key = "\t".join([commit, str(asked.seed), *map(str, mutant[:4])])
            if any(line.startswith(f"{key}\t") for line in known):
                continue
            began = time.monotonic()
            verdict, test = copy.verdict(mutant)
            took = f"{time.monotonic() - began:.0f} s"
            line = f"{key}\t{verdict}\t{took}\t{test}\t{mutant.text.strip()}"
            print(line, file=results, flush=True)
    summary(asked.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
