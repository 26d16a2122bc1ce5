"""`hamiregion run`: what the program gets, and that it is what it would be without."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda.driver import gpu_uuid
from support.command_line import Terminal
from support.process import finished
from support.run_scene import REGION, RunScene, variables
from support.wait import PATIENCE_S, eventually

import libhamiregion as hami
from libhamiregion.units import GIB

SHOW = ("sh", "-c", f'cat "${REGION}" >"$COPY"; env')
CHILDREN = "cat /proc/$$/task/$$/children"
STATE = "/proc/{}/status"


def region_of_a_run(runs: RunScene, tmp_path: Path, *options: str) -> hami.RegionSnapshot:
    """The region as the program found it at its start."""
    copy = tmp_path / "copy.cache"
    answer = runs.run(*options, "--", *SHOW, COPY=str(copy))
    assert answer.returncode == 0, answer.stderr
    with hami.open_region(copy) as region:
        return region.snapshot()


def test_the_program_has_a_region_with_the_gpus_and_the_limits(runs, tmp_path):
    options = ("--memory", "4GiB", "--memory", f"{gpu_uuid(1)}=25%", "--sm", "0=50")
    seen = region_of_a_run(runs, tmp_path, *options, "--priority", "0")
    assert [device.uuid for device in seen.devices] == [gpu_uuid(0), gpu_uuid(1)]
    assert [device.memory_limit_bytes for device in seen.devices] == [4 * GIB, 4 * GIB]
    assert [device.sm_limit_percent for device in seen.devices] == [50, None]
    assert (seen.priority, seen.processes) == (0, ())


@pytest.mark.slow
def test_what_the_loader_is_told_already_is_kept(runs, tmp_path):
    before = {"LD_LIBRARY_PATH": f"{tmp_path}::/nowhere", "LD_PRELOAD": "libc.so.6 libm.so.6"}
    found = variables(runs.run("--", "env", "-0", **before).stdout)
    ours, *rest = found["LD_LIBRARY_PATH"].split(":")
    assert rest == [str(runs.driver), str(tmp_path), "", "/nowhere"]
    assert Path(found[REGION]).parent == Path(ours)
    assert found["LD_PRELOAD"] == before["LD_PRELOAD"]

    found = variables(runs.run("--inject", "preload", "--", "env", "-0", **before).stdout)
    *others, ours = found["LD_PRELOAD"].split(":")
    assert others == ["libc.so.6", "libm.so.6"]
    assert Path(ours).name == "libhamiregion-preload.so"
    assert found["LD_LIBRARY_PATH"] == f"{runs.driver}:{tmp_path}::/nowhere"


def test_nothing_else_of_the_environment_is_changed(runs):
    before = runs.environment()
    after = variables(runs.run("--on-error", "open", "--", "env", "-0").stdout)
    assert after.keys() - before.keys() == {
        REGION,
        "CUDA_DEVICE_ORDER",
        "HAMIREGION_ON_ERROR",
        "LD_LIBRARY_PATH",
    }
    assert after["HAMIREGION_ON_ERROR"] == "open"
    assert {name: after.get(name) for name in before} == before


def test_nvml_shows_the_budget_to_nvidia_ml_py(runs):
    asks = (
        "import pynvml as n; n.nvmlInit()\n"
        "print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(1)).total)"
    )
    for inject in ("standin", "preload"):
        answer = runs.run("--inject", inject, "--memory", "1=3g", "--", sys.executable, "-c", asks)
        assert (answer.stdout, answer.stderr) == (f"{3 * GIB}\n", "")


# ---- the program is the process ------------------------------------------------------------------


@pytest.mark.slow
def test_the_exit_code_is_the_programs(runs):
    for code in (0, 7, 255):
        assert runs.run("sh", "-c", f"exit {code}").returncode == code
    killed = runs.run("--", "sh", "-c", "kill -KILL $$")
    assert killed.returncode == -signal.SIGKILL
    # As a shell tells it.
    word = " ".join(runs.command("sh", "-c", "kill -TERM $$"))
    shell = finished(
        ["sh", "-c", f"{word.replace('kill -TERM $$', repr('kill -TERM $$'))}; echo $?"],
        env=runs.environment(),
        check=True,
    )
    assert shell.stdout == f"{128 + signal.SIGTERM}\n"


@pytest.mark.slow
def test_a_program_that_is_not_there_or_no_program_is_told_from_one_that_failed(runs, tmp_path):
    text = tmp_path / "text"
    text.write_text("words\n")
    for mode, code, why in (
        (None, 127, "No such file or directory"),
        (0o644, 126, "Permission denied"),
        (0o755, 126, "Exec format error"),
    ):
        if mode is not None:
            text.chmod(mode)
        answer = runs.run(str(text) if mode is not None else "no-such-program")
        assert (answer.returncode, answer.stdout) == (code, "")
        assert answer.stderr.endswith(f": {why}\n")
        assert answer.stderr.count("\n") == 1
    eventually(lambda: not runs.directories())
    # Kept as the note says, although nothing has run.
    note = runs.run("--keep", str(text)).stderr.splitlines()[0]
    (name,) = runs.directories()
    assert note == f"Note: the region stays: {runs.base / name / 'region.cache'}"


def test_the_command_becomes_the_program(runs):
    """So the same parent, group, session, and no child that it did not start itself."""
    with runs.start("--", "sh", "-c", f"echo $$; {CHILDREN}; echo; read line") as process:
        assert int(process.stdout.readline()) == process.pid
        # The cat is the only one.
        (only,) = process.stdout.readline().split()
        assert not Path(f"/proc/{only}").exists()
        assert runs.directories() == [f"run_{process.pid}"]
        process.communicate("\n")


def test_the_program_inherits_nothing_that_the_command_needed(runs):
    """No descriptor, no signal that is ignored or blocked."""
    script = "ls /proc/$$/fd; exec grep -E 'SigIgn|SigBlk' /proc/self/status"
    bare = finished(["sh", "-c", script], stdin=subprocess.DEVNULL, check=True)
    assert runs.run("--", "sh", "-c", script).stdout == bare.stdout


def test_a_descriptor_that_the_program_closes_is_closed(runs):
    """Nothing that stays behind holds one that the program was handed, such as a pipe to say that
    it is ready."""
    reader, writer = os.pipe()
    closes = f"import os; os.close({writer}); input()"
    command = runs.command("--", sys.executable, "-c", closes)
    process = subprocess.Popen(
        command, env=runs.environment(), stdin=subprocess.PIPE, pass_fds=[writer]
    )
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123
        ended, _, _ = select.select([pipe], [], [], PATIENCE_S)
        process.communicate(b"\n")
        assert ended


def test_a_caller_may_ignore_the_ends_of_children(runs):
    ignoring = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    answer = finished(
        [sys.executable, "-c", ignoring, *runs.command("--", "echo", "started")],
        env=runs.environment(),
    )
    assert (answer.returncode, answer.stdout) == (0, "started\n"), answer.stderr
    eventually(lambda: not runs.directories())


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_command_is_one_signal_to_the_program(runs, number):
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo caught' {name}; echo ready; while read line; do echo $line; done"
    with runs.start("--", "sh", "-c", script) as process:
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "caught\n"
        out, _ = process.communicate()
        assert out == ""


def test_ctrl_c_on_a_terminal_reaches_the_program_once(runs):
    words = ("run", "--driver", str(runs.driver), "--", "sh", "-c")
    script = "trap 'echo caught; exit 3' INT; echo ready; while :; do read line; done"
    with Terminal(*words, script, env=runs.environment()) as terminal:
        terminal.wait_for(lambda screen: "ready" in screen)
        terminal.type("\x03")
        assert terminal.wait() == 3
    assert terminal.text.count("caught") == 1
    eventually(lambda: not runs.directories())


def test_the_program_can_be_stopped_and_goes_on(runs):
    def state() -> str:
        text = Path(STATE.format(process.pid)).read_text()
        return text.split("State:")[1].split()[0]

    with runs.start("--", "cat") as process:
        eventually(runs.cleaners)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: state() == "T")
        process.send_signal(signal.SIGCONT)
        assert process.communicate("on\n")[0] == "on\n"


# ---- what is refused -----------------------------------------------------------------------------


def refused(answer: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """Why, in the one line that a refusal is."""
    assert (answer.returncode, answer.stdout) == (code, "")
    assert answer.stderr.startswith("Error: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr.removeprefix("Error: ").strip()


def test_a_machine_without_a_driver_is_refused(runs, tmp_path):
    answer = runs.run("--driver", str(tmp_path), "--", "true")
    assert refused(answer).startswith(f"no NVIDIA driver in {tmp_path}")
    runs.play("error nvmlInitWithFlags 9")
    assert "the NVIDIA driver does not answer: nvmlInitWithFlags gives error 9" in refused(
        runs.run("--", "true")
    )


def library(directory: Path, name: str) -> Path:
    """An empty library of that name."""
    made = directory / name
    command = ["cc", "-shared", "-fPIC", "-o", str(made), "-x", "c", "/dev/null"]
    subprocess.run(command, check=True)
    return made


@pytest.mark.slow
def test_a_program_that_libvgpu_limits_is_refused(runs, tmp_path):
    libvgpu = library(tmp_path, "libvgpu.so")
    assert "libvgpu.so limits this" in refused(runs.run("--", "true", LD_PRELOAD=str(libvgpu)))
    # As /etc/ld.so.preload has it: loaded, and no variable says so.
    code = (
        "import ctypes, os, sys; from libhamiregion.run import LaunchError, environment\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "try: environment(driver=sys.argv[2]).__enter__()\n"
        "except LaunchError as error: print(error)"
    )
    answer = finished(
        [sys.executable, "-c", code, str(libvgpu), str(runs.driver)],
        env=runs.environment(),
        check=True,
    )
    assert answer.stdout.startswith("libvgpu.so limits this program already")


def test_a_directory_is_not_taken_for_libvgpu(runs, tmp_path):
    directory = tmp_path / "libvgpu-tools"
    directory.mkdir()
    other = library(directory, "libother.so")
    assert runs.run("--dry-run", LD_PRELOAD=str(other)).returncode == 0


@pytest.mark.slow
def test_a_program_built_for_musl_is_refused(runs, tmp_path):
    program = tmp_path / "program"
    loader = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
    command = ["cc", loader, "-o", str(program), "-x", "c", "-"]
    source = "int main(void) { return 0; }"
    subprocess.run(command, input=source, text=True, check=True)
    answer = runs.run("--", str(program))
    assert refused(answer) == f"{program} is built for musl, and the driver works with glibc only"
    assert runs.directories() == []


def test_an_environment_that_has_a_region_is_refused_unless_one_is_joined(runs, tmp_path):
    hami.create_region(tmp_path / "mine.cache")
    theirs = {REGION: "/tmp/cudevshr.cache"}
    assert "has a region already, /tmp/cudevshr.cache" in refused(runs.run("--", "true", **theirs))
    joined = runs.run(
        "--region", str(tmp_path / "mine.cache"), "--", "sh", "-c", f"echo ${REGION}", **theirs
    )
    assert joined.stdout == f"{tmp_path}/mine.cache\n"


def test_wrong_usage_is_exit_code_2_and_one_sentence_says_why(runs, tmp_path):
    hami.create_region(tmp_path / "mine.cache")
    for words in (
        (),
        ("--memory", "6GB", "--", "true"),
        ("--sm", "0", "--", "true"),
        ("--priority", str(2**40), "--", "true"),
        ("--json", "--", "true"),
        ("--inject", "ptrace", "--", "true"),
        ("--region", str(tmp_path / "mine.cache"), "--memory", "1g", "--", "true"),
    ):
        answer = runs.run(*words)
        assert (answer.returncode, answer.stdout) == (2, ""), words
        assert answer.stderr.splitlines()[-1].startswith("Error: ")


# ---- the environment for elsewhere ---------------------------------------------------------------


def test_a_dry_run_starts_and_makes_nothing(runs, tmp_path):
    answer = runs.run("--memory", "1g", "--dry-run", "--", "touch", str(tmp_path / "made"))
    assert answer.returncode == 0
    assert not (tmp_path / "made").exists()
    assert not runs.base.exists()
    assert answer.stdout.splitlines()[0] == f"{REGION}={runs.base}/run_PID/region.cache"
    assert answer.stderr.startswith(f"Note: {runs.base}/run_PID exists while a program runs only")


def test_an_sm_limit_on_several_gpus_is_started_with_a_warning(runs):
    """Programs that wait for each other keep their GPUs busy with that."""
    assert "collectives" in runs.run("--sm", "50", "--", "true").stderr
    assert runs.run("--sm", "50", "--gpus", "0", "--", "true").stderr == ""
    assert runs.run("--memory", "1GiB", "--", "true").stderr == ""
