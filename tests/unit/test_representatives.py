"""`make test` has something of everything, and with `make thorough` and `make stress` all of it."""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from representatives import representatives
from support.wait import PATIENCE_S

TESTS = Path(__file__).parents[1]
MAKEFILE = TESTS.parent / "Makefile"
CI = TESTS.parent / ".ci/run"
MARKERS = ("apart", "stress", "thorough")

MATRIX = """
import pytest

@pytest.mark.representatives
@pytest.mark.parametrize("call", ["open", "read", "close"])
@pytest.mark.parametrize("error", [1, 2])
def test_call(call, error):
    pass

@pytest.mark.representatives(2)
@pytest.mark.parametrize("size", range(10))
def test_size(size):
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_all(size):
    pass
"""


def test_each_value_of_each_parameter_is_in_one() -> None:
    matrix = [{("a", a), ("b", b)} for a, b in itertools.product(range(4), range(3))]
    chosen = representatives(matrix)
    assert set().union(*(matrix[at] for at in chosen)) == set().union(*matrix)
    assert len(chosen) == 4


@pytest.mark.parametrize(
    ("most", "chosen"), [(1, {0}), (2, {0, 5}), (3, {0, 3, 6}), (99, {*range(10)})]
)
def test_so_many_are_spread_over_all(most: int, chosen: set[int]) -> None:
    assert representatives([{value} for value in range(10)], most) == chosen


def collected(tmp_path: Path, markers: str) -> set[str]:
    (tmp_path / "test_it.py").write_text(MATRIX)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    thorough\n    representatives\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "representatives", "-c", "pytest.ini"),
            *("--collect-only", "-q", "-m", markers),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}


def test_what_is_left_out_of_one_target_is_in_the_other(tmp_path: Path) -> None:
    daily, rest = (collected(tmp_path, each) for each in ("not thorough", "thorough"))
    assert {each for each in daily if "call" not in each} == {
        *("test_size[0]", "test_size[5]", "test_all[1]")
    }
    values = [re.split(r"[][-]", each)[1:3] for each in daily if "call" in each]
    assert len(values) == 3
    assert {*itertools.chain(*values)} == {"1", "2", "open", "read", "close"}
    assert not daily & rest
    assert len(daily | rest) == 6 + 10 + 2


def chosen_by_targets() -> list[tuple[str, str]]:
    """The targets that run all of tests/, each with what it says of markers, once for each run."""
    found = re.findall(
        r"^(test|thorough|stress): .*\n((?:\t.*\n)+)", MAKEFILE.read_text(), re.MULTILINE
    )
    return [
        (target, expression)
        for target, recipe in found
        for expression in re.findall(r' -m "?([a-z ]+?)"? (?:\$|--)', recipe)
    ]


@pytest.mark.skipif(not CI.exists(), reason="needs the whole tree")
def test_ci_runs_each_test_once() -> None:
    chosen = chosen_by_targets()
    targets = [target for target, _ in chosen]
    assert targets == ["test", "test", "thorough", "thorough", "stress"]
    for values in itertools.product([False, True], repeat=len(MARKERS)):
        has = dict(zip(MARKERS, values, strict=True))
        by = [target for target, expression in chosen if eval(expression, {}, has)]
        assert len(by) == 1, (has, by)
    steps = re.findall(
        r"^ +step (tests/harmless make|make) (test|thorough|stress)\b", CI.read_text(), re.MULTILINE
    )
    assert steps == [
        (command, target)
        for command in ("tests/harmless make", "make")
        for target in dict.fromkeys(targets)
    ]


def markers_of(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(each).removeprefix("pytest.mark.") for each in function.decorator_list}


def test_no_file_leaves_all_to_make_thorough() -> None:
    """Each verb, layout and kind of fault has something in `make test`, as its file has."""
    left = []
    for path in sorted(TESTS.rglob("test_*.py")):
        functions = [
            markers_of(each)
            for each in ast.parse(path.read_text()).body
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
        ]
        daily = [each for each in functions if not each & {"thorough", "stress"}]
        if not daily and any("thorough" in each for each in functions):
            left.append(path.name)
    assert left == []
