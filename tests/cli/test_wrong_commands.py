"""Commands and plans that people get wrong: each is answered by one sentence that says what to do.

All of them are one paragraph of at most 500 characters without a traceback, and nothing goes to
stdout. What is wrong in Python is in `test_wrong_uses`.
"""

import re
import shlex
from pathlib import Path

import pytest
from support.command_line import refused

from libhamiregion import create_region, open_region

UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
MOST_CHARACTERS = 500
RULES = "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
BRACE = RULES + "  - select: {namespace: a\n    set: {sm_limit: 50}\n"
WEB = "tls_server_config: {cert_file: a.pem}\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with a region, what is none, plans and web configurations."""
    at = tmp_path_factory.mktemp("wrong")
    create_region(at / "a.cache", memory_limits=["8GiB", "4GiB"], uuids=[UUID, f"{UUID[:-1]}1"])
    (at / "notes.txt").write_text("no region " * 100)
    (at / "link.cache").symlink_to("a.cache")
    (at / "node").mkdir()
    (at / "brace.yaml").write_text(BRACE)
    (at / "web.yml").write_text(WEB)
    return at


# A command and its exit code.
COMMANDS: dict[str, int] = {
    "shwo a.cache": 2,
    "a.cache": 2,
    "limits list": 2,
    "lock a.cache": 2,
    "show": 2,
    "show none.cache": 1,
    "show node": 1,
    "show a.cache b.cache": 2,
    "show notes.txt": 1,
    "show link.cache": 1,
    "show a.cache --jsno": 2,
    "show a.cache --watch 0": 2,
    "show a.cache --layout 1.3": 2,
    "mine": 1,
    "limits get a.cache --device 7": 2,
    "limits set a.cache": 2,
    "limits set a.cache 6GiB": 2,
    "limits set --memory 6GiB": 2,
    "limits set a.cache --memory": 2,
    "limits set a.cache --memory 6GB": 2,
    "run --memory 6 --dry-run": 2,
    "limits set a.cache --memory 0": 2,
    "limits set a.cache --sm 0.5": 2,
    "limits set a.cache --memory 15.9MiB": 2,
    "limits set a.cache a.cache --memory 6GB": 2,
    "limits set a.cache --device -1 --memory 1g": 2,
    "limits set a.cache --sm 50 --device 9": 2,
    "limits set a.cache --memory 6GiB --if-equals 1GiB": 3,
    "limits set a.cache --memory 6GiB --sm 5 --if-equals 1": 2,
    "limits set none.cache --memory 6GiB": 1,
    "suspend a.cache": 2,
    "reap a.cache --proc none": 1,
    "lock status": 2,
    "create a.cache": 1,
    "create none/b.cache": 1,
    "create b.cache --memory 80%": 2,
    "create b.cache" + " --memory 1g" * 17: 2,
    "create b.cache --memory 1g --hami-version 2.10": 2,
    "create b.cache --uuid 0": 2,
    "create b.cache --from-environment --sm 5": 2,
    "run": 2,
    "run --gpu 0 -- true": 2,
    "run --inject ptrace -- true": 2,
    "run --json -- true": 2,
    "run --region a.cache --sm 5 -- true": 2,
    "run --driver node --memory 4GiBs -- true": 2,
    "run --driver node --sm 0=half -- true": 2,
    "run --driver node -- true": 1,
    "ps --root node --sort size": 2,
    "ps --root node --watch 2s": 2,
    "containers --root node --pods x": 2,
    "doctor --root node --dry-run": 2,
    "doctor --root node --repair --watch 5": 2,
    "doctor --root node --only host_pid": 2,
    "doctor --root node --no-driver --pod nosuch": 1,
    "exporter --listen 9394": 2,
    "exporter --log-level loud": 2,
    "exporter --collector gpus": 2,
    "exporter --root node --web-config web.yml": 1,
    "agent --root node --from-annotations": 2,
    "record --root node --once": 2,
    "record --root node --once --to node": 2,
    "record --root node --once --to notes.txt": 1,
    "record --root node --once --to x --retention 7": 2,
    "record --root node --once --to x --max-size 1GB": 2,
    "report": 2,
    "report --from none.db": 1,
    "report --from notes.txt": 1,
    "report --from ftp://prometheus": 2,
    "limits diff": 2,
    "limits diff a.cache": 2,
    "limits diff /dev/zero": 2,
    "limits diff --from-annotations --node-name n --kubeconfig /dev/zero": 1,
    "limits diff brace.yaml": 2,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command_ends_with_one_line_in_the_command_lines_terms(command, place, monkeypatch):
    monkeypatch.chdir(place)
    for name in ("NODE_NAME", "HOOK_PATH", "LD_PRELOAD", "CUDA_DEVICE_MEMORY_SHARED_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if command == "mine":
        monkeypatch.setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "none.cache")
    code = COMMANDS[command]
    # Read only, and all the same of no node but the test's own.
    place_of_it = ["--root", "node"] if command.startswith("limits diff ") else []
    said = refused(*shlex.split(command), *place_of_it, code=code)
    # The command line's language, not Python's.
    assert not re.search(r"\w=(True|False|None)\b|\w\(\)|\bNone\b", said), said
    *before, said = said.splitlines()
    assert all(len(line) <= MOST_CHARACTERS for line in (*before, said))
    if before[:1] == ["Error: the plan cannot be used"]:
        # A line per problem, as compilers have them.
        assert all(line.startswith(f"{shlex.split(command)[2]}:") for line in (*before[1:], said))
        return
    assert said.startswith("Error: ")
    # Wrong usage says first how it is used, and where there is more.
    usage = [line for line in before if line]
    assert not usage or (code == 2 and [line.split()[0] for line in usage] == ["Usage:", "Try"])


def test_none_of_them_has_changed_anything(place):
    assert not {path.name for path in place.iterdir()} & {"b.cache", "none", "x"}
    with open_region(place / "a.cache") as region:
        limits = [device.memory_limit_bytes for device in region.snapshot().devices]
    assert limits == [8 * 2**30, 4 * 2**30]
