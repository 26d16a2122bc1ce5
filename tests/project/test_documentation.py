"""What the documentation shows is what happens: every example runs."""

import ast
import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import click
import pytest
import yaml
from support.command_line import call, logging_kept
from support.wait import PATIENCE_S

import libhamiregion
import libhamiregion.run
from libhamiregion import agent, exporter, node, plan, report, testing
from libhamiregion.cli.verbs import hamiregion
from libhamiregion.observation.containers import MissingReason
from libhamiregion.observation.rows import ProcessState
from libhamiregion.plan.diff import UnappliedReason
from libhamiregion.services.controllers import Evidence
from libhamiregion.testing import FakeNode

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


MODULES = [
    "libhamiregion",
    *(
        module.name
        for module in pkgutil.walk_packages(libhamiregion.__path__, "libhamiregion.")
        if not module.name.endswith(("__main__", "_native", "_build"))
    ),
]


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match["kind"], match["code"]) for match in FENCE.finditer(page.read_text())]


def test_docstrings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = 0
    for name in MODULES:
        failed, examples = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
        assert failed == 0, name
        tried += examples
    assert tried > 10


def run_session(code: str, names: dict[str, object], page: Path) -> None:
    session = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    said: list[str] = []
    runner.run(session, out=said.append, clear_globs=False)
    names.update(session.globs)
    assert not runner.failures, "".join(said)


def run(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with all that it prints as its output."""
    return subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=4 * PATIENCE_S,
    )


def run_commands(code: str) -> None:
    """Run each line that begins with "$ hamiregion" and compare what it prints."""
    checker = doctest.OutputChecker()
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        program, *words = command.split()
        assert program == "hamiregion", command
        answer = call(*words)
        said = answer.stdout + answer.stderr
        # What else runs on this machine, and whether it has a driver, is of no page.
        said = re.sub(r"^Note: .*\n", "", said, flags=re.MULTILINE)
        assert checker.check_output(expected, said, FLAGS), (
            f"$ {command}\nprints\n{said}\nand not\n{expected}"
        )


class Sandbox:
    """A fake node in the place of the machine that the pages' programs are about."""

    def __init__(self, fake: FakeNode, directory: Path) -> None:
        self._directory = directory
        region = fake.containers[0].region
        self._places = {
            "/usr/local/vgpu/containers/<pod UID>_<container>/<uuid>.cache": str(region),
            "/usr/local/vgpu/containers": str(fake.root),
            "/var/log/pods": str(fake.pod_logs),
            "/var/lib/hamiregion": str(directory),
            '":9394"': '"127.0.0.1:0"',
        }
        self._environment = {
            "HOOK_PATH": str(fake.directory),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def run(self, program: str) -> None:
        """Run a program: its text in this process, or under pytest if it is a test."""
        for place, here in self._places.items():
            program = program.replace(place, here)
        assert not re.search(r"[\"\'](?:/usr/|/var/|/etc/|/run/)", program), program
        path = self._directory / "test_program.py"
        path.write_text(program)
        if "import pytest" in program:
            words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
            done = run([sys.executable, *words], self._environment)
            assert done.returncode == 0, done.stdout
            return
        output = contextlib.redirect_stdout(io.StringIO())
        with pytest.MonkeyPatch.context() as patch, output, logging_kept():
            for name, text in self._environment.items():
                patch.setenv(name, text)
            patch.setattr(sys, "stdin", io.StringIO())
            runpy.run_path(str(path), run_name="__main__")

    def record(self) -> None:
        """Make the recording that a page's program reads."""
        place = ("--root", self._places["/usr/local/vgpu/containers"], "--no-driver")
        to = ("--to", str(self._directory / "node.db"))
        run([sys.executable, "-m", "libhamiregion", "record", "--once", *place, *to])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page, tmp_path, monkeypatch):
    """Sessions, commands and programs run, top to bottom, beside a fake node.

    Not run: what takes a driver (test_examples.py does), Docker, a cluster, or an
    installation; and commands without a "$", whose words are checked below.
    """
    monkeypatch.chdir(tmp_path)
    # What a page sets is taken back after it.
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")
    names: dict[str, object] = {}
    monkeypatch.setenv("HAMIREGION_STATE", str(tmp_path / "state"))
    with FakeNode(tmp_path / "machine", containers=1, processes=0) as fake:
        fake.add(region=False)
        sandbox = Sandbox(fake, tmp_path)
        if page.name == "record-and-report.md":
            sandbox.record()
        for kind, code in blocks(page):
            if kind == "pycon":
                run_session(code, names, page)
            elif kind == "console":
                run_commands(code)
            elif kind == "yaml":
                check_yaml(code, tmp_path)
            elif kind == "python" and "import run" not in code:
                sandbox.run(code)


def test_files_of_the_tree_that_a_page_names_are_there():
    named = re.compile(r"\b((?:deploy|examples|benchmarks|csrc)/[\w./-]*\w)")
    for page in PAGES:
        missing = {each for each in named.findall(page.read_text()) if not (ROOT / each).exists()}
        assert missing == set(), page.name


def check_yaml(code: str, directory: Path) -> None:
    """A plan is one that can be used, and lies there for the page's programs."""
    document = yaml.safe_load(code)
    if document.get("kind") == "LimitPlan":
        plan.parse_plan(code.encode(), "night.yaml")
        (directory / f"{document['metadata']['name']}.yaml").write_text(code)


# ---- Commands ----

TEXTS = {".py", ".md", ".ipynb", ".yaml", ".sh", ".html"}

# A command at the beginning of a line of an example, behind a prompt or in a comment; alone in a
# cell of a table; and after "Shell:".
COMMAND = re.compile(
    r"(?:^[ \t]*(?:[$#] *)?|^\| `|Shell: ``)(hamiregion (?:[^`|\n\\]|\\\n)+)", re.MULTILINE
)


def docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for each in ast.walk(ast.parse(path.read_text())):
        if isinstance(each, kinds):
            yield ast.get_docstring(each) or ""


def example_texts() -> Iterator[str]:
    """Whatever people copy commands from."""
    for page in PAGES:
        text = page.read_text()
        yield "\n".join(code for _, code in blocks(page))
        yield "\n".join(line for line in text.splitlines() if line.startswith(("|", "    ")))
    for path in (*(ROOT / "libhamiregion").rglob("*.py"), *(ROOT / "examples").rglob("*.py")):
        yield from docstrings(path)
    for path in (ROOT / "examples").rglob("*.yaml"):
        yield path.read_text()


def parse(words: list[str]) -> None:
    """Have the command line read a command, without doing what it says."""
    command: click.Command = hamiregion
    context: click.Context | None = None
    while True:
        context = command.make_context(words[0], words[1:], parent=context)
        if not isinstance(command, click.Group):
            return
        rest = [*context._protected_args, *context.args]
        _, found, more = command.resolve_command(context, rest)
        assert found is not None
        command, words = found, [rest[0], *more]


def test_every_command_in_a_text_has_verbs_and_options_that_there_are(monkeypatch):
    monkeypatch.setenv("NODE_NAME", "gpu-1")
    for text in example_texts():
        for match in COMMAND.finditer(text):
            command = re.split(r"[|>;&…]| \.\.\.", match[1].replace("\\\n", " "))[0]
            words = shlex.split(re.sub(r"\bPID\b", "7", command), comments=True)
            try:
                parse(words)
            except click.MissingParameter:
                # A table names a verb and says what it is for.
                continue
            except click.exceptions.Exit:
                # --help and --version.
                continue
            except click.ClickException as error:
                pytest.fail(f"{command}: {error.format_message()}")


def test_no_text_installs_by_a_name_that_anyone_can_take():
    """The package is on no index: a stranger could register the name, and be installed as root."""
    by_name = re.compile(r"pip install (?:-\S+ )*['\"]?libhamiregion\b")
    folders = ("libhamiregion", "examples", "docs", "deploy")
    files = (path for each in folders for path in (ROOT / each).rglob("*") if path.is_file())
    texts = [ROOT / "README.md", *(each for each in files if each.suffix in TEXTS)]
    assert len(texts) > 200
    assert [path for path in texts if by_name.search(path.read_text())] == []


def test_every_verb_has_the_options_that_the_table_about_nodes_gives_it():
    page = (ROOT / "docs" / "command-line.md").read_text()
    section = page.partition("## A node")[2].partition("\n## ")[0]
    everywhere = ["ps", "containers", "top", "doctor"]
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|$", section, re.MULTILINE)
    assert len(rows) > 5
    for options, meaning in rows:
        named = re.match(r"((?:`\w+`(?:, | and )?)+): ", meaning)
        verbs = re.findall(r"`(\w+)`", named[1]) if named else everywhere
        for verb in verbs:
            command = hamiregion.get_command(click.Context(hamiregion), verb)
            known = {each for one in command.params for each in one.opts}
            assert set(re.findall(r"--[\w-]+", options)) <= known, (verb, options)


@pytest.mark.parametrize(
    ("page", "values"),
    [
        ("agent", get_args(Evidence)),
        ("command-line", get_args(ProcessState)),
        ("limits-by-plan", get_args(UnappliedReason)),
        ("node", [each.value for each in MissingReason]),
    ],
)
def test_every_value_that_is_printed_has_a_row_in_its_table(page, values):
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    explained = {word.strip("`") for each in rows for word in each.split(", ")}
    assert values
    assert set(values) <= explained


# ---- The reference -------------------------------------------------------------------------------


def public_names(floor: ModuleType) -> list[str]:
    """Names that a floor declares: in `__all__`, or as `from .x import X as X`."""
    names = [name for name, value in vars(floor).items() if not isinstance(value, ModuleType)]
    return getattr(floor, "__all__", None) or [name for name in names if not name.startswith("_")]


PUBLIC = {
    f"{floor.__name__}.{name}"
    for floor in (libhamiregion, node, exporter, plan, report, agent, libhamiregion.run, testing)
    for name in public_names(floor)
}


def documented_names() -> Iterator[str]:
    """What the reference documents, under the names that users import."""
    module = libhamiregion.__name__
    directive = re.compile(r"^\.\. (currentmodule|auto\w+):: ([\w.]+)(?:\(\))?$", re.MULTILINE)
    for page in (ROOT / "docs").glob("api*.md"):
        for kind, name in directive.findall(page.read_text()):
            if kind == "currentmodule":
                module = name
            else:
                yield name if name.startswith("libhamiregion.") else f"{module}.{name}"


def test_reference_has_every_public_name_where_it_is_imported_from():
    assert PUBLIC - {"libhamiregion.__version__"} - set(documented_names()) == set()
