"""Commands and plans that people get wrong: each is answered by one sentence that says what to do.

Beside the words that each answer must have, all of them are one paragraph of at most 500 characters
without a traceback, and nothing goes to stdout. What is wrong in Python is in `test_wrong_uses`.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

import pytest
from support.command_line import call

from libhamiregion import create_region, open_region

if TYPE_CHECKING:
    from pathlib import Path

UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
MOST_CHARACTERS = 500
RULES = "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
FIRST = RULES + "  - select: {namespace: research}\n    set: "
PLANS = {
    "empty": "",
    "no-head": "rules: []\n",
    "other-kind": "apiVersion: hamiregion.io/v1\nkind: ConfigMap\nrules: []\n",
    "no-list": RULES + "  select: {}\n  set: {sm_limit: 50}\n",
    "tab": RULES + "  - select: {}\n\tset: {sm_limit: 50}\n",
    "brace": RULES + "  - select: {namespace: a\n    set: {sm_limit: 50}\n",
    "two": FIRST + "{sm_limit: 50}\n---\n" + FIRST + "{sm_limit: 60}\n",
    "alias": RULES + "  - select: &a {pod: x}\n    set: {}\n  - select: *a\n",
    "key": RULES + "  - select: {namspace: a}\n    set: {sm_limit: 50}\n",
    "words": RULES + "  - select: all\n    set: {sm_limit: 50}\n",
    "pods": RULES + "  - select: {pod: [a, b]}\n    set: {sm_limit: 50}\n",
    "no-pattern": RULES + "  - select: {pod: ''}\n    set: {sm_limit: 50}\n",
    "device": RULES + "  - select: {device: 99}\n    set: {sm_limit: 50}\n",
    "no-select": RULES + "  - set: {sm_limit: 50}\n",
    "no-set": RULES + "  - select: {}\n",
    "nothing-set": FIRST + "{}\n",
    "no-value": FIRST + "{sm_limit: }\n",
    "limit": FIRST + "{memory: 6GiB}\n",
    "unit": FIRST + "{memory_limit: 6GB}\n",
    "zero": FIRST + "{memory_limit: 0}\n",
    "fraction": FIRST + "{sm_limit: 0.5}\n",
    "twice": FIRST + "{sm_limit: 50, sm_limit: 60}\n",
    "priority": FIRST + "{priority: high}\n",
    "device-priority": RULES + "  - select: {device: 0}\n    set: {priority: 0}\n",
    "good": FIRST + "{sm_limit: 50}\n",
}
WEB = {
    "none": "tls_server_config: {cert_file: none.pem, key_file: none.key}\n",
    "password": "basic_auth_users: {me: secret}\n",
    "word": "tls_config: {}\n",
    "key": "tls_server_config: {cert_file: a.pem}\n",
    "yaml": "a: [\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a region, what is none, plans and web configurations."""
    at = tmp_path_factory.mktemp("wrong")
    create_region(at / "a.cache", memory_limits=["8GiB", "4GiB"], uuids=[UUID, f"{UUID[:-1]}1"])
    (at / "empty.cache").touch()
    (at / "notes.txt").write_text("no region " * 100)
    (at / "link.cache").symlink_to("a.cache")
    (at / "node").mkdir()
    os.mkfifo(at / "fifo")
    for name, text in PLANS.items():
        (at / f"{name}.yaml").write_text(text)
    for name, text in WEB.items():
        (at / f"{name}.yml").write_text(text)
    return at


# A command: its exit code, and a pattern of what it says.
COMMANDS: dict[str, tuple[int, str]] = {
    # ---- verbs -------------------------------------------------------------------------------
    "shwo a.cache": (2, "No such command 'shwo'. Did you mean show?"),
    "limit get a.cache": (2, "No such command 'limit'. Did you mean limits?"),
    "contianers": (2, "id you mean containers?"),
    "doctors": (2, "id you mean doctor?"),
    "metrics": (2, "No such command 'metrics'. There are agent, .*exporter, "),
    "a.cache": (2, "No such command 'a.cache'. There are .*show, "),
    "limits gett a.cache": (2, "No such command 'gett'. Did you mean get"),
    "limits list": (2, "No such command 'list'. There are apply, diff, export, get, set."),
    "lock a.cache": (2, "No such command 'a.cache'. There are recover, status."),
    "lock recovr a.cache": (2, "id you mean recover?"),
    "--verion": (2, "No such option:? '?--verion'?.*id you mean '?--version"),
    # ---- one region --------------------------------------------------------------------------
    "show": (2, "Missing argument 'FILE'"),
    "show none.cache": (1, "none.cache' does not exist; a container has its region once"),
    "show node": (1, "is a directory; give the path of the region file itself"),
    "show a.cache b.cache": (2, "unexpected extra argument .b.cache."),
    "show notes.txt": (1, "is not a HAMi region: .* give the path of a .cache file"),
    "show link.cache": (1, "a symbolic link, .*; give the path of the region file itself"),
    "show a.cache --jsno": (2, "No such option:? '?--jsno'?.*id you mean '?--json"),
    "show a.cache --watch": (2, "'--watch' requires an argument"),
    "show a.cache --watch 5s": (2, "'5s' is not a valid number of seconds, such as 5"),
    "show a.cache --watch 0": (2, "'--watch' .* 0.0 is not in the range 0.05<=x<=86400"),
    "show a.cache --layout 1.3": (2, "'--layout': '1.3' is not one of .*'1.2'"),
    "mine": (1, "CUDA_DEVICE_MEMORY_SHARED_CACHE names it: nothing here has used CUDA"),
    "limits get a.cache --device 7": (2, "a.cache' has no device 7, only 0 .GPU-.*, 1 "),
    "limits get a.cache --device cuda:0": (
        2,
        "a.cache' has no device 'cuda:0', only 0 .*, 1 ",
    ),
    "limits set a.cache": (2, "Say what to set: --memory, --sm or --burst"),
    "limits set a.cache 6GiB": (2, "Say what to set: --memory, --sm or --burst"),
    "limits set --memory 6GiB": (2, "Missing argument 'FILE"),
    "limits set a.cache --memory": (2, "'--memory' requires an argument"),
    "limits set a.cache --memory 6GB": (2, '"6GB" may mean .*: write "GiB"'),
    "limits set a.cache --memory 6 GiB": (2, "no file 'GiB'; a size is one word"),
    "limits set a.cache --memory lots": (2, '"lots" is not a size: write .* such as "6GiB"'),
    "limits set a.cache --memory 0": (2, '0 would mean unlimited; say "unlimited"'),
    "limits set a.cache --memory-limit 6GiB": (2, "id you mean '?--memory"),
    "limits set a.cache --dryrun": (2, "id you mean '?--dry-run"),
    "limits set a.cache --sm 0.5": (2, "is 1 to 100 percent, or \"unlimited\", not '0.5'"),
    "limits set a.cache --sm half": (2, "is 1 to 100 percent, or \"unlimited\", not 'half'"),
    "limits set a.cache --sm 50 --device 9": (2, "has no device 9, only 0 .*, 1 "),
    "limits set a.cache --memory 6GiB --if-equals 1GiB": (1, "not 1 GiB .* nothing was changed"),
    "limits set a.cache --memory 6GiB --sm 5 --if-equals 1": (2, "give --memory or --sm, not both"),
    "limits set none.cache --memory 6GiB": (1, "none.cache' does not exist"),
    "suspend a.cache": (2, "Missing argument 'PID'"),
    "suspend a.cache python": (2, "'python' is not a valid pid; `hamiregion show FILE` lists them"),
    "suspend a.cache 4194305": (1, "a.cache' has no slot of a process 4194305; .* lists them"),
    "reap a.cache --proc none": (1, "none: no such directory to look for processes in"),
    "lock status": (2, "Missing argument 'FILE'"),
    "create a.cache": (
        1,
        "a.cache: a region is never created over an existing file; open or remove it",
    ),
    "create none/b.cache": (1, "the directory of .*none/b.cache' does not exist"),
    "create b.cache --memory 80%": (2, '"80%" of what.* give bytes, or "6GiB"'),
    "create b.cache --sm 200": (2, "an SM limit is 1 to 100 percent"),
    "create b.cache --uuid 0": (2, "'0' is no device uuid: GPU-… or MIG-…"),
    "create b.cache --priority high": (2, "'--priority': 'high' is not a valid integer"),
    "create b.cache --from-environment --sm 5": (2, "--from-environment already says what"),
    # ---- programs ----------------------------------------------------------------------------
    "run": (2, "Missing argument 'PROGRAM .ARG....'"),
    "run --gpu 0 -- true": (2, "id you mean '?--gpus"),
    "run --inject ptrace -- true": (2, "'ptrace' is not one of 'standin', 'preload'"),
    "run --json -- true": (2, "--json is for --dry-run; a program's output is its own"),
    "run --region a.cache --sm 5 -- true": (2, "a region that is joined has its own limits"),
    "run --driver node --memory 4GiBs -- true": (2, '"4GiBs" is not a size: write .*"6GiB"'),
    "run --driver node --sm 0=half -- true": (2, "is 1 to 100 percent, or .* not 'half'"),
    "run --driver node -- true": (1, "no NVIDIA driver in .*node: .*libcuda.so.1 is missing"),
    # ---- a node ------------------------------------------------------------------------------
    "ps --root node --sort size": (2, "'size' is not one of 'name', 'memory', 'sm', 'pid'"),
    "ps --root node --watch fast": (2, "'fast' is not a valid number of seconds"),
    "ps --root node --proc none": (1, "none: No such file or directory"),
    "containers --root node --pods x": (2, "No such option:? '?--pods'?.*id you mean .*'?--pod"),
    "doctor --root node --dry-run": (2, "--dry-run goes with --repair"),
    "doctor --root node --repair --watch 5": (2, "`hamiregion agent` keeps repairing"),
    "doctor --root node --only host_pid": (2, "'host_pid'.*host_pid_wrong"),
    "exporter --listen 9394": (2, "'9394' is no address such as 127.0.0.1:9394, :9394"),
    "exporter --listen :99999": (2, "':99999' is no address such as"),
    "exporter --port 9394": (2, "No such option:? '?--port"),
    "exporter --interval 15s": (2, "'15s' is not a valid number of seconds"),
    "exporter --resync-interval 5": (2, "'5' is no length of time such as 30s.*: it has no unit"),
    "exporter --root node --web-config none.yaml": (1, "none.yaml: No such file or directory"),
    "exporter --root node --web-config node": (1, "node: not a regular file"),
    "exporter --root node --web-config none.yml": (1, "none.pem: No such file or directory"),
    "exporter --root node --web-config password.yml": (1, "users.me: no bcrypt hash .*htpasswd"),
    "exporter --root node --web-config word.yml": (1, "'tls_config' is not .* tls_server_config"),
    "exporter --root node --web-config key.yml": (1, "tls_server_config: key_file is missing"),
    "exporter --root node --web-config yaml.yml": (1, "yaml.yml:2: no YAML: "),
    "agent --root node": (2, "name what to do: --feedback, --repair, "),
    "agent --root node --from-annotations": (2, "name it with --node or NODE_NAME"),
    "record --root node --once": (2, "Missing option '--to'"),
    "record --root node --once --to node": (2, "File 'node' is a directory"),
    "record --root node --once --to notes.txt": (1, "is not a recording: it is no SQLite file"),
    "record --root node --once --to x --retention 7": (2, "'7' is no length of time such as"),
    "record --root node --once --to x --max-size 1GB": (2, '"1GB" may mean .*: write "GiB"'),
    "report": (2, "Missing option '--from'"),
    "report --from none.db": (1, "none.db: No such file or directory"),
    "report --from notes.txt": (1, "is not a recording: it is no SQLite file"),
    "report --from ftp://prometheus": (2, "--from is a recording, or an http:// .* ftp://prom"),
    "report --from x --since yesterday": (2, "'yesterday' is neither a length of time .*24h"),
    "report --from x --format pdf": (2, "'pdf' is not one of 'text', 'html', 'csv', 'json'"),
    "report --from x --json --format csv": (2, "--json and --format csv contradict each other"),
    "report --from x --step 5m": (2, "--step is for a Prometheus, and x is none"),
    # ---- plans -------------------------------------------------------------------------------
    "limits diff": (2, "Say which plan: a FILE, --from-annotations, or both"),
    "limits diff none.plan": (1, "none.plan: No such file or directory"),
    "limits diff node": (1, "node: not a regular file"),
    "limits diff a.cache": (2, "not UTF-8 in line 1; save the plan as UTF-8"),
    "limits apply good.yaml --root none": (1, "none of the directories given can be listed"),
    "limits apply good.yaml --root node --watch --dry-run": (2, "--watch goes with neither"),
    "limits apply - --root node --watch": (2, "again and again: name a file, not -"),
    "limits apply good.yaml --root node --interval 5": (2, "--interval goes with --watch"),
    "limits apply --from-annotations --root node": (2, "name it with --node or NODE_NAME"),
    "limits diff /dev/zero": (2, "/dev/zero: more than 32 MiB; a plan is a small text"),
    "limits diff --from-annotations --node n --kubeconfig /dev/zero": (
        1,
        "the pods of this node cannot be listed: /dev/zero: longer than 8388608 bytes",
    ),
    "limits diff empty.yaml": (2, "empty.yaml: the plan is empty"),
    "limits diff no-head.yaml": (2, "apiVersion: missing; write `apiVersion: hamiregion.io/v1`"),
    "limits diff other-kind.yaml": (2, ":2:7: kind: this version reads `LimitPlan`, not `Conf"),
    "limits diff no-list.yaml": (2, ":4:3: rules: a list .*belongs here, each with a `-`"),
    "limits diff tab.yaml": (2, "tab.yaml:5:1: .*a tab; YAML is indented with spaces"),
    "limits diff brace.yaml": (2, "brace.yaml:5:8: neither YAML nor JSON: .*expected ',' or '}'"),
    "limits diff two.yaml": (2, ":6:1: a second document; a file holds one plan"),
    "limits diff alias.yaml": (2, ":6:13: rules.1..select: a plan has no aliases; write it out"),
    "limits diff key.yaml": (2, ":4:14: rules.0..select.namspace: unknown; known are .*namespace"),
    "limits diff words.yaml": (2, ":4:13: rules.0..select: a mapping belongs here, not `all`"),
    "limits diff pods.yaml": (2, ":4:19: rules.0..select.pod: one text belongs here, not a list"),
    "limits diff no-pattern.yaml": (2, 'an empty pattern .*; leave it out, or write "."'),
    "limits diff device.yaml": (2, "a device is an index from 0 to 15, or a pattern of its uuid"),
    "limits diff no-select.yaml": (2, "select: missing; write `select: {}` for all"),
    "limits diff no-set.yaml": (2, "set: missing; give memory_limit, sm_limit, priority"),
    "limits diff nothing-set.yaml": (2, ":5:10: rules.0..set: nothing is set; give memory_limit,"),
    "limits diff no-value.yaml": (2, "nothing stands here; give a value or no key"),
    "limits diff limit.yaml": (2, "rules.0..set.memory: unknown; known are memory_limit,"),
    "limits diff unit.yaml": (2, ':5:25: rules.0..set.memory_limit: "6GB" .* write "GiB"'),
    "limits diff zero.yaml": (2, '0 would mean unlimited; say "unlimited" for that'),
    "limits diff fraction.yaml": (2, ":5:21: .* 1 to 100 percent, or \"unlimited\", not '0.5'"),
    "limits diff twice.yaml": (2, ":5:25: rules.0..set.sm_limit: given a second time"),
    "limits diff priority.yaml": (2, "a priority is a number: 0 is high, 1 is low"),
    "limits diff device-priority.yaml": (2, "a priority is of the whole container; set it without"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command_ends_with_one_sentence_that_says_what_to_do(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for name in ("NODE_NAME", "HOOK_PATH", "LD_PRELOAD", "CUDA_DEVICE_MEMORY_SHARED_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if command == "mine":
        monkeypatch.setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "none.cache")
    code, words = COMMANDS[command]
    # Read only, and all the same of no node but the test's own.
    place_of_it = ["--root", "node"] if command.startswith("limits diff ") else []
    answer = call(*shlex.split(command), *place_of_it)
    assert (answer.returncode, answer.stdout) == (code, ""), answer.stderr
    assert re.search(words, answer.stderr), answer.stderr
    # The command line's language, not Python's.
    assert not re.search(r"\w=(True|False|None)\b|\w\(\)|\bNone\b", answer.stderr), answer.stderr
    *before, said = answer.stderr.splitlines()
    assert all(len(line) <= MOST_CHARACTERS for line in (*before, said))
    if before[:1] == ["Error: the plan cannot be used"]:
        # A line per problem, as compilers have them.
        assert all(line.startswith(f"{shlex.split(command)[2]}:") for line in (*before[1:], said))
        return
    assert said.startswith("Error: ")
    # Wrong usage says first how it is used, and where there is more.
    usage = [line for line in before if line]
    assert not usage or (code == 2 and [line.split()[0] for line in usage] == ["Usage:", "Try"])


def test_none_of_them_has_changed_anything(place: Path) -> None:
    assert not {path.name for path in place.iterdir()} & {"b.cache", "none", "x"}
    with open_region(place / "a.cache") as region:
        limits = [device.memory_limit_bytes for device in region.snapshot().devices]
    assert limits == [8 * 2**30, 4 * 2**30]
