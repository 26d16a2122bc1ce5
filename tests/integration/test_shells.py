"""The shells complete verbs and options, and man shows the manual page."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wait import PATIENCE_S

SHARE = Path(__file__).parents[2] / "share"
SHIPPED = {
    "bash": SHARE / "bash-completion" / "completions" / "hamiregion",
    "zsh": SHARE / "zsh" / "site-functions" / "_hamiregion",
    "fish": SHARE / "fish" / "vendor_completions.d" / "hamiregion.fish",
}
WORDS = {
    "li": "limits",
    "limits s": "set",
    "limits set --mem": "--memory",
    "lock ": "recover",
    "completion f": "fish",
    "exporter --collector.n": "--collector.nvml",
}
# One program answers all shells. A verb, an option, and what comes after a space are each shell's.
FEW_WORDS = ("li", "limits set --mem", "lock ")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which `hamiregion` is a command, as pip makes it."""
    command = tmp_path / "bin" / "hamiregion"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom libhamiregion.cli import main\nmain()\n")
    command.chmod(0o755)
    # A home of its own: shells keep what they have made of completions.
    home = {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    return {
        **os.environ,
        **home,
        "XDG_DATA_HOME": str(tmp_path),
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def output(env: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.representatives(1)
@pytest.mark.parametrize("shell", SHIPPED)
def test_what_is_printed_and_what_is_shipped_can_be_parsed(env: dict[str, str], shell: str) -> None:
    printed = Path(env["HOME"], "printed")
    printed.write_text(output(env, "hamiregion", "completion", shell))
    for script in (printed, SHIPPED[shell]):
        assert output(env, need(shell), "-n", str(script)) == ""


@pytest.mark.representatives(2)
@pytest.mark.parametrize("typed", WORDS)
def test_bash_completes(env: dict[str, str], typed: str) -> None:
    script = (
        'source "$1"; read -ra COMP_WORDS <<< "hamiregion $2";'
        ' [[ $2 == *" " ]] && COMP_WORDS+=("");'
        " COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _hamiregion_completion hamiregion;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    answer = output(env, need("bash"), "--norc", "-c", script, "-", str(SHIPPED["bash"]), typed)
    assert WORDS[typed] in answer.split()


@pytest.mark.representatives(1)
@pytest.mark.parametrize("typed", FEW_WORDS)
def test_fish_completes(env: dict[str, str], typed: str) -> None:
    script = 'source $argv[1]; complete -C "hamiregion $argv[2]"'
    answer = output(env, need("fish"), "--no-config", "-c", script, str(SHIPPED["fish"]), typed)
    assert WORDS[typed] in answer.split()


def test_zsh_completes(env: dict[str, str]) -> None:
    """What is typed is completed by the file that zsh finds in its search path."""
    zsh = need("zsh")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(zsh, [zsh, "-f", "-i"], env)
    seen = ""

    def wait_for(words: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + PATIENCE_S
        while words not in seen:
            ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"zsh shows {seen!r}"
            seen += os.read(terminal, 65_536).decode("utf-8", "replace")
        seen = ""

    try:
        setup = f"fpath=({SHIPPED['zsh'].parent} $fpath); autoload -Uz compinit; compinit -u"
        os.write(terminal, f"{setup}; print rea''dy\n".encode())
        wait_for("ready")
        for typed, completed in (
            ("hamiregion limi\t", "limits"),
            ("se\t", "set"),
            ("--mem\t", "--memory"),
        ):
            os.write(terminal, typed.encode())
            wait_for(completed)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_the_manual_page_is_one(env: dict[str, str]) -> None:
    page = str(SHARE / "man" / "man1" / "hamiregion.1")
    assert output(env, need("groff"), "-man", "-Tutf8", "-ww", "-z", page) == ""
    assert output(env, need("mandoc"), "-T", "lint", "-W", "error", page) == ""
    shown = output({**env, "MANWIDTH": "80"}, need("man"), "--local-file", page)
    assert "hamiregion limits set [OPTIONS] FILE..." in shown
