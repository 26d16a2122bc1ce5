"""Events of services: how often, how long, and about which container."""

import uuid

from libhamiregion.node import ClaimName, Container, PodName
from libhamiregion.services.events import Event, EventReporter, container_label


def test_a_container_cannot_fill_a_log(monkeypatch):
    """Neither by how long nor by how often, whatever it changes meanwhile."""
    said: list[Event] = []
    reporter = EventReporter("repair", said.append)
    for number in range(1000):
        path = f"/roots/uid_name/{number}.cache"
        container = Container("uid", "name" * 100, "/roots/uid_name", path)
        reporter.emit("repaired", f"{number} " * 20_000, container, kind="\x1b" * 5_000)
        reporter.failed("it was not", OSError(5, f"reason {number}", path), container)
        reporter.recovered(container)
    for event in ("repaired", "failed", "recovered"):
        of = [each for each in said if each.event == event]
        assert len(of) == 10, event
        assert of[-1].message.endswith("(512 times now)")
    assert max(len(each.message) for each in said) <= 400
    assert max(len(str(each.detail)) for each in said) < 150
    # What differs by a key of the task's own is not the same.
    reporter.emit("repaired", "other", container, distinct="kind")
    assert said[-1].message.endswith(": other")
    clock = reporter._counts[next(reversed(reporter._counts))][1]
    monkeypatch.setattr("time.monotonic", lambda: clock + 3601)
    reporter.emit("repaired", "anew", container)
    assert said[-1].message.endswith(": anew"), "after an hour it is news again"


def test_a_recovery_is_reported_if_a_failure_was_and_the_container_is_still_there():
    said: list[Event] = []
    reporter = EventReporter("task", said.append)
    one, other = (Container("uid", name, f"/roots/uid_{name}") for name in ("one", "other"))
    reporter.failed("it failed", "gone", one)
    reporter.failed("it failed", "gone", other)
    reporter.retain([one])
    for _ in range(2):
        reporter.recovered(one)
        reporter.recovered(other)
    assert [(each.event, each.container) for each in said] == [
        ("failed", "uid/one"),
        ("failed", "uid/other"),
        ("recovered", "uid/one"),
    ]


def test_a_container_is_named_without_anything_that_steers_a_terminal():
    hostile = Container("uid", "na\x1bme\n", "/roots/uid_name")
    assert container_label(hostile) == r"uid/na\x1bme\n"
    outside = Container(None, None, None, "/proc/7/root/tmp/\x07.cache")
    assert container_label(outside) == r"/proc/7/root/tmp/\x07.cache"
    assert container_label(Container(None, None, None)) == "a region outside the roots"


def test_an_event_names_a_pod_where_its_name_is_known_and_else_has_its_uid():
    known, unknown = (str(uuid.uuid4()) for _ in range(2))
    name = PodName("research", "bert-0", "train")
    claim = ClaimName("research", "shared", ("bert-0", "bert-1"))
    said: list[Event] = []
    reporter = EventReporter("task", said.append)
    for container in (
        Container(known, "train", f"/roots/{known}_train", pod_name=name),
        Container(unknown, "train", f"/roots/{unknown}_train"),
        Container(known, region_path="/proc/7/map_files/1", path_in_namespace="/a", pod_name=name),
        Container(claim_uid=known, directory="/claims/a", pod_name=claim.pod_name, claim=claim),
        Container(claim_uid=unknown, directory="/claims/b"),
    ):
        reporter.emit("repaired", "so", container, figure=1)
    assert [(each.message, each.container, each.detail.get("pod")) for each in said] == [
        ("research/bert-0/train: so", f"{known}/train", "research/bert-0"),
        (f"{unknown}/train: so", f"{unknown}/train", None),
        ("research/bert-0 /a: so", "/a", "research/bert-0"),
        ("claim/research/shared: so", f"claim/{known}", None),
        (f"claim/{unknown}: so", f"claim/{unknown}", None),
    ]
    assert all(each.detail["figure"] == 1 for each in said)
    # Others are joined by it: a long one is whole.
    pod, uid = "a" * 180, str(uuid.uuid4())
    long = PodName("research", pod, "train")
    container = Container(uid, "train", f"/roots/{uid}_train", pod_name=long)
    reporter.emit("repaired", "so", container)
    assert said[-1].detail["pod"] == f"research/{pod}"
