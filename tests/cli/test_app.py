"""How the command line starts, and what all its verbs have in common."""

import contextlib
import os
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner
from support.cli_verbs import commands
from support.command_line import COMMAND, call, environment, run, start, without_notes
from support.forked import unprivileged
from support.process import finished
from support.wait import PATIENCE_S

import libhamiregion as hami
from libhamiregion.cli.verbs import hamiregion


def test_every_verb_takes_the_common_options():
    for path, command in commands():
        options = {name for parameter in command.params for name in parameter.opts}
        # An observation is JSON and nothing else.
        assert "--json" in options or path == ("observe",)
        if path[-1] in {"set", "create", "suspend", "resume", "recover", "reap", "doctor"}:
            assert "--dry-run" in options, path
        if path[-1] in {"ps", "top", "containers", "doctor"}:
            assert {"--root", "--proc", "--outside", "-o"} <= options, path


def test_help_names_every_verb_and_the_exit_codes_and_imports_none():
    for flag in ("--help", "-h"):
        answer = CliRunner().invoke(hamiregion, [flag])
        for path, _ in commands():
            assert f"  {path[0]} " in answer.output
        for words in ("0 done", "1 failed", "2 wrong usage", "3 refused or problems remain"):
            assert words in " ".join(answer.output.split())
    code = (
        "import sys; sys.argv = ['hamiregion', '--help']\n"
        "try: from libhamiregion.cli import main; main()\n"
        "finally: print({'rich', 'libhamiregion.node'} & set(sys.modules))"
    )
    answer = finished([sys.executable, "-c", code])
    assert answer.stdout.endswith("set()\n"), answer.stderr


@pytest.mark.parametrize("how", ["once", "several", "watch"])
def test_a_pipe_that_is_closed_ends_a_verb_without_a_word(tmp_path, how):
    for name in ("a", "b", "c"):
        hami.create_region(tmp_path / f"{name}.cache", memory_limits=("8GiB",))
    words = {
        "once": ("show", f"{tmp_path}/a.cache"),
        "several": ("limits", "set", "--sm=30", *map(str, tmp_path.glob("*.cache"))),
        "watch": ("show", f"{tmp_path}/a.cache", "--watch", "0.05"),
    }
    with start(*words[how]) as process:
        if how == "watch":
            assert process.stdout.readline().startswith("path ")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == 1


def test_an_agent_without_metrics_does_not_load_the_exporter():
    """Nor what it stands on, which takes as much again; budgets are of all that is resident."""
    code = (
        "import sys, libhamiregion.cli.agent;"
        " print({'libhamiregion.exporter', 'http.server', 'pynvml'}"
        " & set(sys.modules))"
    )
    answer = finished([sys.executable, "-c", code])
    assert answer.stdout == "set()\n", answer.stderr


def test_the_version_is_the_library_s():
    assert run("--version").stdout == f"hamiregion, version {hami.__version__}\n"


def test_a_refusal_of_the_system_is_the_library_s_own_failure(public_directory):
    closed = {name: public_directory / name for name in ("a.cache", "plan.yaml", "a.db", "log")}
    hami.create_region(closed["a.cache"])
    for file in closed.values():
        file.touch()
        file.chmod(0)
    region, plan, recording, log = map(str, closed.values())
    calls = (
        (("show", region), f"Error: access to '{region}' was refused (Permission denied); run as"),
        (("limits", "get", region), f"Error: access to '{region}' was refused"),
        (("limits", "diff", plan), f"Error: {plan}: Permission denied"),
        (("report", "--from", recording), f"Error: {recording}: "),
        (("record", "--to", log, "--once"), f"Error: '{log}': Permission denied"),
    )
    # Imported while this user may still read the interpreter's files.
    for module in pkgutil.walk_packages(hami.__path__, f"{hami.__name__}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                import_module(module.name)
    for words, said in calls:
        answer = unprivileged(lambda words=words: call(*words))
        assert (answer.returncode, answer.stdout) == (1, ""), answer.stderr
        assert answer.stderr.startswith(said), answer.stderr


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    "words",
    [
        ("show", "REGION"),
        ("limits", "set", "REGION", "--sm", "50"),
        ("create", "NEW"),
        ("ps", "--root", "DIRECTORY", "--no-driver"),
        ("record", "--to", "NEW", "--root", "DIRECTORY", "--no-driver", "--once"),
        ("agent", "--repair", "--root", "DIRECTORY", "--once"),
        ("--help",),
    ],
    ids=" ".join,
)
def test_an_answer_for_which_there_is_no_output_lands_in_no_file(words, tmp_path):
    """Closed standard streams get no file of the command's own in their place."""
    region, directory = tmp_path / "a.cache", tmp_path / "containers"
    hami.create_region(region)
    directory.mkdir()
    meant = {"REGION": str(region), "NEW": str(tmp_path / "new"), "DIRECTORY": str(directory)}
    given = [meant.get(word, word) for word in words]
    answer = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *COMMAND, *given],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert (answer.returncode, without_notes(answer.stderr)) == (0, "")
    with hami.open_region(region) as opened:
        assert opened.snapshot().settled


def test_a_failure_that_nobody_can_be_told_of_has_its_exit_code(tmp_path):
    for words, code in ((("show", str(tmp_path / "none")), 1), (("show",), 2)):
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *COMMAND, *words]
        assert subprocess.run(command, env=environment(), check=False).returncode == code


def test_without_the_extra_one_line_names_it():
    code = (
        "import sys; sys.modules['click'] = None;"
        " import libhamiregion; from libhamiregion.cli import main; main()"
    )
    answer = finished([sys.executable, "-c", code])
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.count("\n") == 1
    assert "pip install '.[cli]'" in answer.stderr


def test_the_library_itself_needs_neither():
    code = (
        "import sys, libhamiregion, libhamiregion.cli;"
        " sys.exit(bool({'click', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("line", "offered"),
    [("hamiregion li", "limits"), ("hamiregion limits s", "set"), ("hamiregion show --l", "--lay")],
)
def test_the_shell_completes(line, offered):
    code = "import sys; sys.argv = ['hamiregion']; from libhamiregion.cli import main; main()"
    script = finished(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "_HAMIREGION_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        },
    )
    assert script.returncode == 0
    assert offered in script.stdout
