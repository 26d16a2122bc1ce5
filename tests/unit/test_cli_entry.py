"""How the command line starts, and what all its verbs have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from cli_process import run
from click.testing import CliRunner

import libhamiregion as hami
from libhamiregion.cli.verbs import hamiregion

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(
    group: click.Group = hamiregion, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = list(commands())
NAMES = [" ".join(path) for path, _ in COMMANDS]


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)
def test_every_verb_takes_the_common_options(path: tuple[str, ...], command: click.Command) -> None:
    assert {"--json", "--no-color"} <= options_of(command)
    if path[-1] in {"set", "create", "suspend", "resume", "recover", "reap"}:
        assert "--dry-run" in options_of(command)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)
def test_every_option_is_explained(path: tuple[str, ...], command: click.Command) -> None:
    answer = CliRunner().invoke(hamiregion, [*path, "--help"])
    assert answer.exit_code == 0
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_help_names_the_verbs_the_exit_codes_and_the_completion() -> None:
    for flag in ("--help", "-h"):
        answer = CliRunner().invoke(hamiregion, [flag])
        assert answer.exit_code == 0
        for word in ("show", "limits", "create", "demo", "Exit codes", "_HAMIREGION_COMPLETE"):
            assert word in answer.output


def test_the_version_is_that_of_the_library() -> None:
    assert run("--version").stdout == f"hamiregion, version {hami.__version__}\n"


@pytest.mark.parametrize("arguments", [("frobnicate",), ("show",), ("show", "a", "--frobnicate")])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    answer = run(*arguments)
    assert answer.returncode == 2
    assert "Error: " in answer.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_one_line_names_it(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None;"
        " import libhamiregion; from libhamiregion.cli import main; main()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert "pip install 'libhamiregion[cli]'" in answer.stderr


def test_the_library_itself_needs_neither() -> None:
    code = (
        "import sys, libhamiregion, libhamiregion.cli;"
        " sys.exit(bool({'click', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "offered"),
    [("hamiregion li", "limits"), ("hamiregion limits s", "set"), ("hamiregion show --l", "--lay")],
)
def test_the_shell_completes(line: str, offered: str) -> None:
    code = "import sys; sys.argv = ['hamiregion']; from libhamiregion.cli import main; main()"
    script = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "_HAMIREGION_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert script.returncode == 0
    assert offered in script.stdout
