"""Put random plausible faults into the tree, one at a time, and list those that no test sees.

    make mutants SEED=7 MUTANTS=200

Each fault is one changed line that compiles to something else. The tests of its subject run first:
those that name the most of what the changed file defines. What survives them has the whole suite
run against it. All of it happens in a copy of the tree, with a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shlex
import subprocess
import sys
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
FILES_OF_A_SUBJECT: Final = 12
C_TESTS: Final = {
    "csrc": [
        "tests/unit",
        "tests/corruption",
        "tests/property",
        "tests/integration/test_c_core.py",
    ],
    "csrc/preload": ["tests/preload"],
}
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
    elif isinstance(node, ast.Return) and node.value is not None:
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
        for pattern, text in FAULTS_IN_C:
            for found in pattern.finditer(line.rstrip("\n")):
                if found.start() in hints_in(line):
                    continue
                changed = line[: found.start()] + found.expand(text) + line[found.end() :]
                if text == "if (!(":
                    changed = re.sub(r"\)( ?\{?)$", r"))\1", changed)
                yield number, changed


def tests_of(path: str) -> list[str]:
    """The test files that name the most of what a file defines; those of the floor for C."""
    for folder in sorted(C_TESTS, key=len, reverse=True):
        if path.startswith(folder):
            return C_TESTS[folder]
    tree = ast.parse((TREE / path).read_text(encoding="utf-8"))
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("__")
    }
    defined.add(Path(path).stem)
    words = re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(defined))) + r")\b")
    scores = Counter(
        {
            test.relative_to(TREE).as_posix(): len(set(words.findall(text)))
            for test in (TREE / "tests").rglob("test_*.py")
            if "packaging" not in test.parts and "cluster" not in test.parts
            for text in [test.read_text(encoding="utf-8")]
        }
    )
    return [name for name, score in scores.most_common(FILES_OF_A_SUBJECT) if score]


class Copy:
    """A copy of the tree that one fault at a time is put into."""

    def __init__(self, root: Path, jobs: int) -> None:
        self.root = root
        self._jobs = jobs
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=TREE, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "--extract"], cwd=root, input=archive.stdout, check=True)
        self.build()

    def build(self) -> bool:
        """Whether what stands in the copy compiles."""
        command = ["make", "--silent", ".venv/.installed"]
        return (
            subprocess.run(command, cwd=self.root, capture_output=True, check=False).returncode == 0
        )

    def is_seen(self, tests: Sequence[str]) -> bool:
        """Whether a test fails, or none ends in time."""
        command = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-n", str(self._jobs), *tests]
        try:
            ran = subprocess.run(
                command, cwd=self.root, capture_output=True, check=False, timeout=SECONDS_FOR_A_RUN
            )
        except subprocess.TimeoutExpired:
            return True
        return ran.returncode != 0

    def verdict(self, mutant: Mutant) -> str:
        """What becomes of a fault: "no fault", "seen", "seen by others" or "survived"."""
        path = self.root / mutant.path
        sound = path.read_bytes()
        lines = sound.decode().splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.text
        path.write_text("".join(lines), encoding="utf-8")
        try:
            if path.suffix == ".c" and not self.build():
                return "no fault"
            if self.is_seen(tests_of(mutant.path)):
                return "seen"
            return "seen by others" if self.is_seen(["tests"]) else "survived"
        finally:
            path.write_bytes(sound)
            if path.suffix == ".c":
                self.build()


def chosen(seed: int, only: str) -> list[Mutant]:
    """Faults in the files asked for, one of each line, in an order that the seed gives."""
    order = []
    for path in [path for pattern in SUBJECTS for path in sorted(TREE.glob(pattern))]:
        if path.match(only):
            relative = path.relative_to(TREE).as_posix()
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
    parser.add_argument("--only", default="*", help="files, as a shell's pattern")
    parser.add_argument("--jobs", type=int, default=3, help="test processes at once")
    asked = parser.parse_args()
    verdicts: Counter[str] = Counter()
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Copy(Path(place), asked.jobs)
        for mutant in chosen(asked.seed, asked.only):
            began = time.monotonic()
            verdict = copy.verdict(mutant)
            if verdict == "no fault":
                continue
            verdicts[verdict] += 1
            if verdict == "survived":
                survivors.append(mutant)
            where = f"{mutant.path}:{mutant.line}"
            line = mutant.text.strip()
            print(f"{verdict:15} {time.monotonic() - began:5.0f} s  {where}  {line}", flush=True)
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
