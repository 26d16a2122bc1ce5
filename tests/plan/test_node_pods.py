"""The list and the watch of a node's pods, at a server that does what the newest ones do."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fake_kubernetes.server import FakeApi
from support.certificates import Authority, needs_openssl
from support.wait import eventually

from libhamiregion.plan import KubernetesError, NodePods

pytest.importorskip("urllib3", reason="needs the extra kubernetes")

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b%02x"
SIX = {"hamiregion.io/memory-limit": "6GiB"}

Watch = Callable[..., NodePods]


@pytest.fixture
def watch(api, tmp_path) -> Iterator[Watch]:
    """Makes watches of node-1's pods, and closes them."""
    with contextlib.ExitStack() as made:

        def watch(**options: Any) -> NodePods:
            options = {"kubeconfig": api.kubeconfig(tmp_path), "first_pause_s": 0.01, **options}
            return made.enter_context(contextlib.closing(NodePods("node-1", **options)))

        yield watch


def names(pods: NodePods) -> set[str] | None:
    """The pods that are known; None before the first list."""
    known = pods.known()[1]
    return None if known is None else {pod.name for pod in known.values()}


def started(pods: NodePods, api: FakeApi) -> NodePods:
    pods.start()
    eventually(lambda: api.open_watches)
    return pods


# ---- the list ----


def test_the_pods_of_a_node_are_listed_at_any_version(api, watch):
    """A server answers such a list from its cache."""
    for number in range(5):
        api.put(f"bert-{number}", UID % number, SIX)
    api.put("elsewhere", UID % 8, SIX, node="node-2")
    pods = watch()
    assert names(pods) is None
    pods.load()
    assert names(pods) == {f"bert-{number}" for number in range(5)}
    assert api.lists == [{"resourceVersion": "0", "fieldSelector": "spec.nodeName=node-1"}]
    assert api.watches == []


def test_of_a_pod_our_annotations_are_kept_within_bounds(api, watch):
    many = {f"hamiregion.io/x{number}": "y" * 1000 for number in range(900)}
    api.put("large", UID % 1, {**many, "other.io/x": "z"})
    pods = watch()
    pods.load()
    (kept,) = (pods.known()[1] or {}).values()
    assert len(kept.annotations) == 256
    assert {len(text) for text in kept.annotations.values()} == {128}
    assert all(key.startswith("x") for key in kept.annotations)


def test_a_list_that_ends_in_the_middle_is_asked_for_again(api, watch):
    for number in range(9):
        api.put(f"bert-{number}", UID % number, SIX)
    api.half_answers = 2
    pods = watch()
    with pytest.raises(KubernetesError, match="ncomplete"):
        pods.load()
    assert names(pods) is None, "half of the pods are not the pods"
    pods.start()
    eventually(lambda: names(pods) == {f"bert-{number}" for number in range(9)})
    eventually(lambda: pods.error is None)
    assert len(api.lists) == 3


# ---- the watch ----


def test_a_watch_that_ends_or_breaks_goes_on_without_another_list(api, watch):
    """What happened while nobody watched comes with the next watch."""
    api.put("bert-0", UID % 0, SIX)
    pods = watch(watch_s=1)
    pods.start()
    eventually(lambda: len(api.watches) == 3)
    assert int(api.watches[0]["timeoutSeconds"]) in {1, 2}
    for number in range(1, 4):
        eventually(lambda: api.open_watches)
        with api.changed:
            api.drop_watches()
            api.put(f"bert-{number}", UID % number, SIX)
        eventually(lambda: len(names(pods) or ()) == number + 1)  # noqa: B023
    api.drop_watches()
    eventually(lambda: api.open_watches and pods.error is None)
    assert len(api.lists) == 1


def test_a_watch_that_is_breaking_is_closed_without_an_error(api, watch):
    for _ in range(20):
        pods = started(watch(), api)
        api.drop_watches()
        pods.close()
        eventually(lambda: not api.open_watches)


def test_a_bookmark_moves_the_version_from_which_a_watch_goes_on(api, watch):
    """So that a node on which nothing happens asks for no version that is forgotten."""
    pods = started(watch(), api)
    for _ in range(3):
        api.bookmark()
    eventually(lambda: pods._version == "103")
    with api.changed:
        api.oldest = api.version
        api.drop_watches()
    eventually(lambda: len(api.watches) == 2)
    assert [each["resourceVersion"] for each in api.watches] == ["100", "103"]
    eventually(lambda: api.open_watches and pods.error is None)
    assert len(api.lists) == 1


@pytest.mark.parametrize("as_event", [True, False])
def test_a_version_that_is_forgotten_is_followed_by_one_list_at_once(api, watch, as_event):
    api.gone_as_event = as_event
    api.put("bert-0", UID % 0, SIX)
    pods = started(watch(first_pause_s=0.01), api)
    with api.changed:
        api.delete(UID % 0)
        api.put("bert-1", UID % 1, SIX)
        api.version += 1
        api.oldest = api.version
        # The watch would tell it otherwise.
        api.events.clear()
        api.generation += 1
    # Nothing of the server's breaks here, so that nothing but the version makes it wait.
    eventually(lambda: names(pods) == {"bert-1"})
    assert len(api.lists) == 2


def test_a_watch_that_fails_as_nobody_expected_says_so_and_goes_on(api, watch, monkeypatch):
    pods = watch()
    take = pods._take
    failures = [ZeroDivisionError("by nobody")]

    def fail_once(event: Any) -> None:
        if failures:
            raise failures.pop()
        take(event)

    monkeypatch.setattr(pods, "_take", fail_once)
    said: list[str] = []
    pods.when_changed(lambda: said.append(str(pods.error)))
    started(pods, api)
    api.put("bert-0", UID % 0, SIX)
    eventually(lambda: names(pods) == {"bert-0"})
    assert any("by nobody" in each for each in said)


@pytest.mark.parametrize("wrong", [b"no JSON\n", b"[]\n", b"7\n", b'{"type": "ADDED"}\n'])
def test_what_is_no_event_is_an_error_and_the_watch_goes_on(api, watch, wrong):
    pods = watch(first_pause_s=0.2)
    api.raw_events.append(wrong)
    pods.start()
    eventually(lambda: pods.error is not None)
    api.put("bert-0", UID % 0, SIX)
    eventually(lambda: names(pods) == {"bert-0"} and pods.error is None)


@pytest.mark.parametrize("wrong", [7, True, 0.5, "x", [[]], [None], {"a": 1}])
def test_events_of_odd_pods_are_passed_over_and_the_others_are_not(api, watch, wrong):
    pods = started(watch(), api)
    with api.changed:
        for place in ("metadata", "spec", "status"):
            api.put("odd", UID % 1, SIX)
            odd = {**api.pods[UID % 1], "spec": {"nodeName": "node-1", "containers": wrong}}
            api.events[-1] = (api.version, "MODIFIED", {**odd, place: wrong})
            if place == "spec":
                api.events[-1] = (api.version, wrong, odd)
    api.put("bert-0", UID % 0, SIX)
    eventually(lambda: "bert-0" in (names(pods) or ()))
    assert (len(api.lists), len(api.watches), pods.error) == (1, 1, None)


# ---- a server that comes and goes ----


def test_an_outage_of_any_length_adds_nothing_to_the_return(api, watch, monkeypatch):
    pauses = pauses_until_started(api, watch(first_pause_s=0.5), [503] * 20, monkeypatch)
    assert len(pauses) == 20
    assert 1.0 <= max(pauses) <= 2.0


def test_a_server_that_goes_on_refusing_is_asked_less_and_less_often(api, watch, monkeypatch):
    pauses = pauses_until_started(api, watch(first_pause_s=0.5), [403] * 15, monkeypatch)
    assert max(pauses[:10]) <= 2.0
    assert 15.0 <= max(pauses[10:]) <= 30.0


def test_a_server_that_wants_to_be_left_alone_is(api, watch, monkeypatch):
    refusals = [(429, 7), (429, 100_000), 429]
    pauses = pauses_until_started(api, watch(first_pause_s=0.01), refusals, monkeypatch)
    assert 7.0 <= pauses[0] <= 7.0 * 1.5
    assert 120.0 <= pauses[1] <= 120.0 * 1.5
    assert 1.0 <= pauses[2] <= 1.5


def pauses_until_started(
    api: FakeApi, pods: NodePods, refusals: list[Any], monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """The pauses after these refusals."""
    with api.changed:
        api.refusals += refusals
    pauses = noted_pauses(pods, monkeypatch)
    started(pods, api)
    return pauses


def noted_pauses(pods: NodePods, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses from now on, none of which is waited for."""
    pauses: list[float] = []
    wait = pods._stopping.wait

    def pause(for_s: float) -> bool:
        pauses.append(for_s)
        return wait(0.001)

    monkeypatch.setattr(pods._stopping, "wait", pause)
    return pauses


def test_a_server_that_fails_or_comes_later_is_asked_again_and_what_was_known_stays(api, watch):
    api.put("bert-0", UID % 0, SIX)
    with api.changed:
        api.refusals += [503] * 3
    pods = started(watch(), api)
    assert len(api.lists) == 4
    said: list[str] = []
    pods.when_changed(lambda: said.append(str(pods.error)))
    with api.changed:
        api.refusals += [500, 503, 403]
        api.drop_watches()
    eventually(lambda: "the API answered 403: told to fail" in said)
    assert names(pods) == {"bert-0"}
    eventually(lambda: not api.refusals and api.open_watches)
    eventually(lambda: pods.error is None)


@needs_openssl
def test_a_slow_handshake_keeps_nobody_waiting_but_the_watch(tmp_path):
    authority = Authority.in_directory(tmp_path / "certificates")
    with FakeApi(authority.issue("api", "IP:127.0.0.1")) as api:
        api.put("bert-0", UID % 0, SIX)
        api.may_shake_hands.clear()
        config = api.kubeconfig(tmp_path, **{"certificate-authority": str(authority.certificate)})
        pods = NodePods("node-1", kubeconfig=config)
        try:
            pods.start()
            assert pods.known() == (0, None)
            api.may_shake_hands.set()
            eventually(lambda: names(pods) == {"bert-0"})
            eventually(lambda: api.open_watches)
        finally:
            pods.close()


@pytest.mark.slow
def test_a_server_that_has_gone_without_a_word_is_noticed(api, watch):
    api.silent = True
    pods = watch(watch_s=1.0)
    pods.start()
    eventually(lambda: len(api.watches) == 1)
    eventually(lambda: len(api.watches) == 2)


def test_a_machine_that_has_gone_without_a_word_is_noticed_within_half_a_minute(api, watch):
    """The kernel asks whether it is still there: the timer that runs on the connection says so."""

    def asks_every_10_s() -> bool:
        keepalive, clock_hz = "02", 100
        lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        timers = [
            line.split()[5].split(":")
            for line in lines
            if line.split()[2].endswith(f":{urlsplit(api.url).port:04X}")
        ]
        return any(timer == keepalive and int(left, 16) <= 10 * clock_hz for timer, left in timers)

    watch().start()
    eventually(asks_every_10_s)


def test_a_watch_is_closed_while_it_waits_and_while_it_pauses(api, watch):
    pods = started(watch(), api)
    pods.close()
    pods.close()
    eventually(lambda: not api.open_watches)
    with api.changed:
        api.refusals += [500]
    paused = watch(first_pause_s=60.0)
    paused.start()
    eventually(lambda: paused.error is not None)
    paused.close()
    assert not {pods._thread, paused._thread} & set(threading.enumerate())


def test_a_watch_that_begins_as_it_is_closed_ends_at_once(watch, monkeypatch):
    pods = watch()
    get = pods._api.get

    def late(*request: Any, **options: Any) -> Any:
        response = get(*request, **options)
        if "silence_s" in options:
            pods._stopping.set()
        return response

    monkeypatch.setattr(pods._api, "get", late)
    pods.start()
    eventually(pods._stopping.is_set)
    began_s = time.monotonic()
    pods.close()
    # Of the 10 s after which a silent server is given up.
    assert time.monotonic() - began_s < 5.0
