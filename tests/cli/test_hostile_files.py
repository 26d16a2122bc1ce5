"""Every hostile file, at every place where a file is opened that somebody else may have put there.

None of them is waited for, followed where a container could point it, read without end or changed.
"""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from support.certificates import Authority
from support.command_line import call
from support.region_file import truncate
from support.wait import PATIENCE_S

from libhamiregion import NotARegion, RegionSet, create_region, identify, open_region
from libhamiregion.exporter.web_config import WebConfigError, load_web_config
from libhamiregion.node import NodeNames
from libhamiregion.plan import KubernetesError, PlanError, kubernetes, load_plan, plan_file
from libhamiregion.plan.kubernetes import _find_access
from libhamiregion.plan.state import PlanState
from libhamiregion.report import Recording, RecordingError, RecordingWriter

ENDLESS_DEVICE = "/dev/zero"
ID = "c0ffee" * 10 + "abcd"
PLAN = """
apiVersion: hamiregion.io/v1
kind: LimitPlan
rules: [{select: {}, set: {sm_limit: 5}}]
"""


class Missed(Exception):
    """What answers that nothing is known."""


class Failed(Exception):
    """What a command has said, with exit code 1."""


# ---- The files ----------------------------------------------------------------------------------


def socket_at(path: Path) -> None:
    # The path of a socket may have 107 bytes only.
    directory = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


def make_endless(path: Path) -> None:
    truncate(path, 1 << 40)


FILES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "socket": socket_at,
    "directory": lambda path: path.mkdir(),
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to(ENDLESS_DEVICE),
    "link to a good one": lambda path: path.symlink_to(path.rename(path.with_name("good"))),
    "endless good one": make_endless,
}


# ---- The places ---------------------------------------------------------------------------------


def opened_in_set(path: Path) -> None:
    with RegionSet() as region_set:
        if not region_set.add(path):
            (error,) = region_set.errors.values()
            raise error


def verb(*words: str) -> Callable[[Path], None]:
    """Run a verb, which may succeed, or fail with one line."""

    def run(path: Path) -> None:
        answer = call(*(str(path) if word == "FILE" else word for word in words))
        if answer.returncode:
            assert (answer.returncode, answer.stdout) == (1, "")
            (line,) = answer.stderr.splitlines()
            assert line.startswith("Error: ")
            assert str(path) in line
            raise Failed(line)

    return run


def named_by_docker(path: Path) -> None:
    if NodeNames(docker=path.parent.parent).resolve(None, None, ID) is None:
        raise Missed


def named_in_a_web_configuration(path: Path) -> None:
    web = path.with_name("web.yml")
    web.write_text(f"tls_server_config: {{cert_file: {path.name}, key_file: {path.name}}}")
    try:
        load_web_config(web)
    finally:
        web.unlink()


def named_in_a_kubeconfig(path: Path, **names: dict[str, str]) -> None:
    kubeconfig = path.with_name("kubeconfig")
    kubeconfig.write_text(a_kubeconfig(**names))
    try:
        _find_access(str(kubeconfig)).headers()
    finally:
        kubeconfig.unlink()


def a_kubeconfig(user: dict[str, str] | None = None, cluster: dict[str, str] | None = None) -> str:
    return json.dumps(
        {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://a", **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {}}],
        }
    )


def a_certificate(path: Path) -> None:
    authority = Authority.in_directory(path.with_name("authority"))
    key = authority.directory / "ca.key"
    path.write_bytes(authority.certificate.read_bytes() + key.read_bytes())


def remembered(path: Path) -> None:
    state = PlanState(path.parent)
    state.watch_undo_path = str(path)
    if state.read_watch_undo() is None:
        raise Missed


def a_region(path: Path) -> None:
    create_region(path, memory_limits=("1GiB",))


def a_docker_config(path: Path) -> None:
    path.write_text(json.dumps({"ID": ID, "Name": "x", "Config": {"Env": []}}))


def a_recording(path: Path) -> None:
    RecordingWriter(path).close()


def what_it_is(kind: str) -> str:
    return "symbolic link" if kind.startswith("link") else kind


def anything(_: str) -> str:
    return ""


NOTHING: frozenset[str] = frozenset()
FOLLOWED = frozenset({"link to a good one"})
LONGER = frozenset({"endless good one"})


@attrs.frozen
class Place:
    """Where a file is opened.

    Attributes:
        good: Makes a file that is taken there.
        enter: Opens it, and raises what is wrong.
        error: What is raised for a hostile file.
        says: A word of the message about a kind of file.
        takes: The kinds that are taken there: a longer file, where only its beginning is looked at,
            and a link, where the file is one that its reader has chosen.
    """

    good: Callable[[Path], object]
    enter: Callable[[Path], Any]
    error: type[Exception] | tuple[type[Exception], ...]
    says: Callable[[str], str] = anything
    takes: frozenset[str] = FOLLOWED


def region_place(enter: Callable[[Path], Any], error: type[Exception] = NotARegion) -> Place:
    return Place(a_region, enter, error, what_it_is, LONGER)


def kubeconfig_place(good: Callable[[Path], object], whose: str, field: str) -> Place:
    def enter(path: Path) -> None:
        named_in_a_kubeconfig(path, **{whose: {field: path.name}})

    return Place(good, enter, OSError if field == "tokenFile" else KubernetesError)


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


VERBS = (
    ("show", "FILE"),
    ("limits", "set", "FILE", "--memory", "1GiB"),
    ("lock", "recover", "FILE"),
)
PLACES = {
    "identify": region_place(identify),
    "open_region": region_place(open_region),
    "open_region to write": region_place(lambda path: open_region(path, writable=True)),
    "RegionSet.add": region_place(opened_in_set),
    **{" ".join(words): region_place(verb(*words), Failed) for words in VERBS},
    "Docker's file of a container": Place(a_docker_config, named_by_docker, Missed, takes=NOTHING),
    "a plan": Place(text(PLAN), load_plan, (PlanError, OSError)),
    "a web configuration": Place(text("{}"), load_web_config, WebConfigError),
    "a recording": Place(
        a_recording, Recording, (RecordingError, OSError), takes=FOLLOWED | LONGER
    ),
    "what plans remember": Place(text("{}"), remembered, (Missed, OSError), takes=NOTHING),
    "a kubeconfig": Place(
        text(a_kubeconfig()), lambda path: _find_access(str(path)), KubernetesError
    ),
    "a kubeconfig's token": kubeconfig_place(text("token"), "user", "tokenFile"),
    "a kubeconfig's authority": kubeconfig_place(a_certificate, "cluster", "certificate-authority"),
    "a kubeconfig's certificate": kubeconfig_place(a_certificate, "user", "client-certificate"),
    "a certificate to serve with": Place(
        a_certificate, named_in_a_web_configuration, WebConfigError
    ),
}


def place_called(name: str) -> Place:
    place = PLACES[name]
    if place.good is a_certificate and shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    return place


def outcome(place: Place, path: Path) -> Exception | None:
    """What is raised, in time."""
    raised: list[Exception | None] = []

    def enter() -> None:
        try:
            opened = place.enter(path)
        except Exception as error:  # noqa: BLE001 (the test judges it)
            raised.append(error)
        else:
            if hasattr(opened, "close"):
                opened.close()
            raised.append(None)

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert raised, "it waits for the file"
    return raised[0]


def facts(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size


@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("name", PLACES)
def test_a_hostile_file_is_refused_at_once_and_left_as_it_is(tmp_path, name, monkeypatch):
    # How long a reader of pipes waits for the next bytes.
    for module in (plan_file, kubernetes):
        monkeypatch.setattr(module, "_SILENCE_S", 0.1)
    place = place_called(name)
    path = tmp_path / "taken" / ID / "config.v2.json"
    path.parent.mkdir(parents=True)
    place.good(path)
    error = outcome(place, path)
    assert error is None, "a good file is refused too"
    for number, (kind, make) in enumerate(FILES.items()):
        path = tmp_path / str(number) / ID / "config.v2.json"
        path.parent.mkdir(parents=True)
        if "good" in kind:
            place.good(path)
        make(path)
        good = path.with_name("good")
        before = [facts(each) for each in path.parent.iterdir()]
        content = good.read_bytes() if good.exists() else b""
        error = outcome(place, path)
        if kind in place.takes:
            assert error is None, kind
            continue
        assert isinstance(error, place.error), (kind, error)
        assert place.says(kind) in str(error), kind
        assert [facts(each) for each in path.parent.iterdir()] == before, kind
        assert not good.exists() or good.read_bytes() == content
