"""`hamiregion demo`: it tells its story, ends by itself and leaves nothing behind."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from support.command_line import Terminal, call, run, start
from support.wait import PATIENCE_S, eventually

STORY = (
    "Two GPUs",
    "Four processes",
    "Refused: ",
    "The same with --force",
    "allocations refused",
    "kill -9",
    "still counts",
    "hamiregion reap",
    "for the others again",
)


def mentions(directory: Path) -> list[int]:
    """Processes whose command line names the directory: the demo's workers do."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str(directory).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                # Gone in the meantime.
                continue
    return found


def nothing_left(directory: Path) -> bool:
    return not mentions(directory) and not list(directory.iterdir())


def told(text: str) -> list[str]:
    """The sentences of the story in the order in which they were told."""
    where = {sentence: text.find(sentence) for sentence in STORY}
    return sorted((s for s in STORY if where[s] >= 0), key=where.__getitem__)


@pytest.mark.slow
def test_the_numbers_bear_the_story_out(tmp_path):
    began = time.monotonic()
    answer = run("demo", "--seconds", "4", env={"TMPDIR": str(tmp_path)})
    assert (answer.returncode, answer.stderr) == (0, "")
    assert time.monotonic() - began > 4, "a part does not end before its time"
    assert told(answer.stdout) == list(STORY)
    refused = int(re.findall(r"(\d+) allocations refused since", answer.stdout)[0])
    assert refused >= 4
    assert nothing_left(tmp_path)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupted_it_cleans_up_as_well(number, code, tmp_path):
    with start("demo", env={"TMPDIR": str(tmp_path)}) as process:
        wait_for_workers(process, tmp_path)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert nothing_left(tmp_path)


def test_ctrl_c_on_a_terminal_gives_the_terminal_back(tmp_path):
    with Terminal("demo", env={"TMPDIR": str(tmp_path)}) as terminal:
        terminal.wait_for(lambda screen: "Four processes" in screen)
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")
    assert nothing_left(tmp_path)


def test_killed_it_leaves_no_process(tmp_path):
    """Nobody can clean up after SIGKILL, but the workers notice that the demo is gone."""
    with start("demo", env={"TMPDIR": str(tmp_path)}) as process:
        wait_for_workers(process, tmp_path)
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    eventually(lambda: not mentions(tmp_path))


def kinds(text: str) -> list[list[str]]:
    """The rows of tables without what differs from time to time: figures and pids."""
    figure = re.compile(r"[0-9.]+(?:[KMG]iB|%|B)")
    rows, pids = [], set[int]()
    for line in filter(None, text.splitlines()):
        words = [figure.sub("N", word) for word in line.split()]
        if words[0] == "POD":
            pids = {at for at, word in enumerate(words) if word.endswith("PID")}
        masked = [at in pids and word.isdigit() for at, word in enumerate(words)]
        rows.append(["N" if is_pid else word for word, is_pid in zip(words, masked, strict=True)])
    return rows


def test_a_node_is_served_until_ctrl_c_and_then_removed(tmp_path):
    words = ("demo", "--node", "--listen", "127.0.0.1:0")
    with start(*words, "--json", env={"TMPDIR": str(tmp_path)}) as process:
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{told['urls'][0]}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        place = ("--root", told["root"], "--pod-logs", told["pod_logs"])
        answer = call("containers", *place, "--json")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HAMIREGION_SOCKET", told["socket"])
            shown = [call("ps").stdout, call("containers").stdout]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (0, "", "")
    pods = {each["pod"] for each in json.loads(answer.stdout)["containers"]}
    assert pods == {"bert-0", "whisper-0", "etl-7", "llama-0"}
    for pod in pods - {"llama-0"}:
        assert f'pod="{pod}"' in text
    assert "hami_vgpu_memory_used_bytes{" in text
    assert "hamiregion_gpu_memory_total_bytes{" in text
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for verb, output in zip(("ps", "containers"), shown, strict=True):
        table = (
            readme.partition(f"$ hamiregion {verb}\n")[2].partition("\n$")[0].partition("```")[0]
        )
        assert kinds(output) == kinds(table), f"README shows what {verb} prints"
    assert 'reason="no_file"' in text
    assert nothing_left(tmp_path)


def wait_for_workers(process: subprocess.Popen[str], directory: Path) -> None:
    """Wait until there are all of them, so that the demo is past starting them."""
    deadline = time.monotonic() + PATIENCE_S
    while len(mentions(directory)) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
