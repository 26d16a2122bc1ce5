"""Put random plausible faults into the tree, one at a time, and list those that no test sees.

    .venv/bin/python tools/mutants.py --seed 7 --mutants 200

Each fault is one changed line that compiles to something else. The tests of its subject run first,
in one process, the quick ones before the others, up to the first failure: those that name what the
changed file defines, and what little else does. What survives them meets those of its surroundings:
more that name it, those of whoever imports or calls it and, for the core, all of its programs in C.
What survives these too has the whole suite run against it, or is left at that with --quick. The
test that fails must pass without the fault. All of it happens in a copy of the tree, with a virtual
environment of its own, which --place keeps for the next run.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import random
import re
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TREE: Final = Path(__file__).resolve().parents[1]
SUBJECTS: Final = ("libhamiregion/**/*.py", "csrc/*.c", "csrc/preload/*.c")
# Of the test files, those that know the subject best.
FILES_OF_A_SUBJECT: Final = 8
FILES_OF_ITS_SURROUNDINGS: Final = 16
# In the order in which they run: those of one process, those of several, programs in C.
KINDS: Final = (
    "tests/region/",
    "tests/unit/",
    "tests/corruption/",
    "tests/",
    "tests/integration/test_c_core.py",
)
C_PROGRAM: Final = "tests/integration/test_c_core.py::test_program[{}]"
SECONDS_FOR_A_RUN: Final = 1800


class Mutant(NamedTuple):
    """One changed line of one file."""

    path: str
    line: int
    text: str


SWAPPED_OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
SWAPPED_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def faults_in_node(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in the place of a node by mistake."""
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
    """The nodes that run: no annotations, and nothing that is for type checkers only."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from code_of(child)


def faults_in_python(source: str) -> Iterator[tuple[int, str]]:
    """Line numbers, and what stands there with one fault in it."""
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
            yield node.lineno, changed.decode()


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
    """Where the numbers stand that tell a compiler what is likely: another one is no fault."""
    return {found.end() for found in EXPECTED.finditer(line)}


def faults_in_c(source: str) -> Iterator[tuple[int, str]]:
    """Line numbers, and what stands there with one fault in it."""
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
                yield number, changed


def names_in_python(path: Path) -> set[str]:
    """The functions and classes that a Python file defines, and its own name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return {name for name in defined if not name.startswith("__")} | {path.stem}


def names_in_c(path: Path, *, all_callers: bool = False) -> set[str]:
    """The functions that a C file defines for others, the Python ones that call them, its name.

    With `all_callers` also those of every file of the core that calls them, if only through others.
    """
    defined = {
        each: set(re.findall(r"^\w[\w \*]*?(hr_\w+)\(", each.read_text("utf-8"), re.MULTILINE))
        for each in path.parent.glob("*.c")
    }
    names = defined[path]
    callers = python_callers(names)
    # Of a file in the middle of the core, those tell who call it.
    while all_callers or not callers:
        calls = re.compile(rf"\b(?:{'|'.join(names)})\(")
        above = [each for each in defined if calls.search(each.read_text(encoding="utf-8"))]
        more = names.union(*(defined[each] for each in above))
        if more == names:
            break
        names, callers = more, python_callers(more)
    return names | callers | {path.stem}


def importers_of(path: Path) -> list[Path]:
    """The files of the package that import a file of it by its name."""
    imports = re.compile(rf"^\s*from [\w.]*\b{re.escape(path.stem)} import ", re.MULTILINE)
    package = (TREE / "libhamiregion").rglob("*.py")
    return [each for each in package if imports.search(each.read_text(encoding="utf-8"))]


def python_callers(functions: set[str]) -> set[str]:
    """The Python functions that call any of these C functions."""
    calls = re.compile(rf"\blib\.(?:{'|'.join(functions)})\b")
    texts = [each.read_text("utf-8") for each in (TREE / "libhamiregion").glob("*.py")]
    return {
        node.name
        for text in texts
        if calls.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("__")
        and calls.search(ast.get_source_segment(text, node) or "")
    }


@functools.cache
def words_of_tests() -> dict[str, set[str]]:
    """The words in each file of tests, and in each program of the core's."""
    found = {}
    for test in (*(TREE / "tests").rglob("test_*.py"), *(TREE / "tests/c").glob("test_*.c")):
        if not {"packaging", "cluster", "gpu"}.intersection(test.parts):
            name = test.relative_to(TREE).as_posix()
            if test.suffix == ".c":
                name = C_PROGRAM.format(test.stem)
            found[name] = set(re.findall(r"\w+", test.read_text(encoding="utf-8")))
    return found


def tests_that_know(path: str, names: set[str]) -> list[str]:
    """Tests by how much they know of some names of a file, each worth more the fewer have it."""
    words = words_of_tests()
    worth = {name: 1 / (1 + sum(name in each for each in words.values())) for name in names}
    stem = Path(path).stem.strip("_")
    # Not what all programs in C are run by, which says nothing of them.
    every_program = C_PROGRAM.partition("[")[0]
    scores = {
        test: sum(worth[name] for name in names & found)
        # A file's name says whose tests it holds.
        + (stem in re.split(r"[^a-z0-9]+", name) or f"test_{stem}" in name)
        for test, found in words.items()
        for name in [test.replace(every_program, "")]
    }
    return [test for test, score in Counter(scores).most_common() if score]


@functools.cache
def tests_of(path: str) -> list[str]:
    """The tests that know a file best."""
    if path.startswith("csrc/preload"):
        return ["tests/preload"]
    names = (names_in_c if path.endswith(".c") else names_in_python)(TREE / path)
    return sorted(tests_that_know(path, names)[:FILES_OF_A_SUBJECT], key=cost)


@functools.cache
def tests_around(path: str) -> list[str]:
    """More tests that know it, or who uses it; for the core, all programs in C too."""
    if path.startswith(("csrc/preload", "libhamiregion/launch")):
        of_programs = {
            each.relative_to(TREE).as_posix()
            for name in ("test_run*.py", "test_launch*.py")
            for each in (TREE / "tests").rglob(name)
        }
        return sorted(of_programs.difference(tests_of(path)), key=cost)
    if path.endswith(".c"):
        names = names_in_c(TREE / path, all_callers=True)
        more = ["tests/integration/test_c_core.py"]
    else:
        names = names_in_python(TREE / path)
        names = names.union(*map(names_in_python, importers_of(TREE / path)))
        more = []
    near = tests_of(path)
    known = [each for each in tests_that_know(path, names) if each not in near]
    known = [each for each in known if "::" not in each][:FILES_OF_ITS_SURROUNDINGS]
    return [*sorted(known, key=cost), *more]


def cost(test: str) -> int:
    """How late a test runs."""
    return max(
        place if kind != "tests/" or not test.startswith(KINDS[:2]) else 0
        for place, kind in enumerate(KINDS)
        if test.startswith(kind)
    )


class Core:
    """The extension of a copy of the tree: one changed file is compiled, and all are linked."""

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
        """What a file compiles to; None if it does not compile."""
        target = self._objects / f"{source.stem}.o"
        command = ["cc", *self._options, "-fPIC", "-w", "-c", str(source), "-o", str(target)]
        return target.read_bytes() if self._is_done(command) else None

    def link(self) -> bool:
        """Whether what was compiled is an extension again."""
        (target,) = (self._root / "libhamiregion").glob("_native.*so")
        # Another file: nobody maps it.
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
    """A copy of the tree that one fault at a time is put into."""

    def __init__(self, root: Path, jobs: int) -> None:
        self.root = root
        self._jobs = jobs
        root.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=TREE, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "--extract"], cwd=root, input=archive.stdout, check=True)
        if not self._make():
            raise SystemExit(f"what stands in {root} does not compile")

    @functools.cached_property
    def _core(self) -> Core:
        return Core(self.root)

    def _make(self) -> bool:
        command = ["make", "--silent", ".venv/.installed"]
        return (
            subprocess.run(command, cwd=self.root, capture_output=True, check=False).returncode == 0
        )

    def build(self, path: Path) -> bytes | None:
        """What runs after a change of a file; None if that does not compile."""
        if path.suffix == ".c" and path.parent.name != "preload":
            built = self._core.compile(path)
            return built if self._core.link() else None
        if path.suffix == ".c" and not self._make():
            return None
        return path.read_bytes()

    def first_failure(self, tests: Sequence[str], *options: str) -> str | None:
        """The first test that fails, or what hangs; None if all pass."""
        if not tests:
            # pytest would run the whole suite.
            return None
        command = [".venv/bin/python", "-m", "pytest", "-q", "-x", *options, *tests]
        try:
            ran = subprocess.run(
                command, cwd=self.root, capture_output=True, check=False, timeout=SECONDS_FOR_A_RUN
            )
        except subprocess.TimeoutExpired:
            return "no end"
        if ran.returncode == 0:
            return None
        said = ran.stdout.decode(errors="replace")
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return found[1] if found else f"exit code {ran.returncode}"

    def fails_anyway(self, test: str) -> bool:
        """Whether a test that has failed does so without the fault, too."""
        # A parameter can have spaces in it, at which its name was cut.
        return "::" in test and self.first_failure([test.partition("[")[0]], "-n", "0") is not None

    def verdict(self, mutant: Mutant, *, quick: bool) -> tuple[str, str]:
        """What becomes of a fault, and who sees it."""
        path = self.root / mutant.path
        # Before the fault is there: the first time all of the core is compiled.
        built = self.build(path)
        sound = path.read_bytes()
        lines = sound.decode().splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.text
        path.write_text("".join(lines), encoding="utf-8")
        try:
            # What compiles to the same is none.
            if self.build(path) in {None, built}:
                return "no fault", ""
            if failed := self.first_failure(tests_of(mutant.path), "-n", "0"):
                return "seen", failed
            if failed := self.first_failure(tests_around(mutant.path), "-n", "0"):
                return "seen around it", failed
            if not quick and (failed := self.first_failure(["tests"], "-n", str(self._jobs))):
                return "seen by others", failed
            return "survived", ""
        finally:
            path.write_bytes(sound)
            self.build(path)


def chosen(seed: int, only: Sequence[str], without: Sequence[str]) -> list[Mutant]:
    """Faults in the files asked for, one of each line, in an order that the seed gives."""

    def is_one_of(path: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)

    order = []
    for path in [path for pattern in SUBJECTS for path in sorted(TREE.glob(pattern))]:
        relative = path.relative_to(TREE).as_posix()
        if is_one_of(relative, only) and not is_one_of(relative, without):
            faults = faults_in_c if path.suffix == ".c" else faults_in_python
            found = faults(path.read_text(encoding="utf-8"))
            order += [Mutant(relative, number, text) for number, text in found]
    random.Random(seed).shuffle(order)
    # A line with many operators is no more worth than another.
    return list({(each.path, each.line): each for each in order}.values())


def main() -> int:
    """Run as many faults as asked for, and print the table of those that survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mutants", type=int, default=50, help="how many faults are judged")
    parser.add_argument("--skip", type=int, default=0, help="of the seed's faults, the first ones")
    patterns = {"action": "extend", "nargs": "+", "metavar": "PATTERN"}
    parser.add_argument("--only", help="files, such as 'csrc/*'", **patterns)
    parser.add_argument("--without", default=[], help="files to leave out", **patterns)
    parser.add_argument("--quick", action="store_true", help="without the whole suite")
    parser.add_argument("--place", type=Path, help="keep the copy there, for the next run")
    parser.add_argument("--jobs", type=int, default=3, help="test processes of the whole suite")
    asked = parser.parse_args()
    verdicts: Counter[str] = Counter()
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Copy(asked.place or Path(place), asked.jobs)
        faults = chosen(asked.seed, asked.only or ["*"], asked.without)
        for mutant in faults[asked.skip :]:
            began = time.monotonic()
            verdict, failed = copy.verdict(mutant, quick=asked.quick)
            if verdict == "no fault":
                continue
            if copy.fails_anyway(failed):
                print(f"not judged: {failed} fails without a fault", flush=True)
                continue
            verdicts[verdict] += 1
            if verdict == "survived":
                survivors.append(mutant)
            where = f"{mutant.path}:{mutant.line}"
            line = mutant.text.strip()
            took = f"{time.monotonic() - began:5.0f} s"
            print(f"{verdict:15} {took}  {where}  {line}  {failed}", flush=True)
            if verdicts.total() == asked.mutants:
                break
    print(f"\n{shlex.join(sys.argv)}: {verdicts.total()} faults")
    for verdict, number in verdicts.most_common():
        print(f"{verdict:15} {number:4}  {100 * number / verdicts.total():.0f} %")
    for path, number in Counter(each.path for each in survivors).most_common():
        print(f"  {number:3}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
