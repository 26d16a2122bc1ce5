"""Pods are reduced while they are read: as much is known of them, and no more is kept."""

import contextlib
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhamiregion.node import KubernetesError
from libhamiregion.node.node_pod import node_pod, shape_of_pods
from libhamiregion.node.pod_stream import read_events, read_list, read_object

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
SHAPE = shape_of_pods(["team"])


def pod(environment: int = 0, **metadata: Any) -> dict[str, Any]:
    """A pod with everything that is read of one, and with a lot that is not."""
    claims = [{"name": "gpu"}, {"name": "other", "request": "a"}]
    container = {
        "name": "train",
        "env": [{"name": f"E{number}"} for number in range(environment)],
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": claims},
    }
    status = {"name": "train", "containerID": "containerd://" + "9b" * 32, "ready": True}
    return {
        "metadata": {
            "namespace": "research",
            "name": "bert-0",
            "uid": UID,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"team": "a", "other": "b"},
            "annotations": {
                "hamiregion.io/memory-limit": "6GiB",
                "kubernetes.io/config.mirror": "9" * 32,
                "other/x": "y" * 1000,
            },
            "ownerReferences": [{"kind": "Node", "name": "node-1", "uid": UID}],
            "managedFields": [{"fieldsV1": {"f:spec": {f"k{n}": {} for n in range(environment)}}}],
            **metadata,
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [container, {"name": "side"}],
            "initContainers": [{"name": "first"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "a100"}],
        },
        "status": {
            "containerStatuses": [status],
            "resourceClaimStatuses": [{"name": "other", "resourceClaimName": "made"}],
        },
    }


def listing(*pods: Any, token: str = "") -> bytes:
    metadata = {"resourceVersion": "7", **({"continue": token} if token else {})}
    return json.dumps({"kind": "PodList", "metadata": metadata, "items": pods}).encode()


def cut(raw: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    while raw:
        size = next(sizes)
        yield raw[:size]
        raw = raw[size:]


@pytest.mark.parametrize("most", [1, 7, 1 << 16])
def test_a_pod_is_known_as_well_as_if_it_had_been_read_as_a_whole(most: int) -> None:
    chance = random.Random(most)
    found: list[Any] = []
    pieces = cut(
        listing(pod(3), pod(uid=UID[::-1].replace("f", "0")), token="next"),
        iter(lambda: chance.randint(1, most), 0),
    )
    assert read_list(pieces, SHAPE, found.append) == ("7", "next")
    first = node_pod(found[0])
    whole = pod(3)
    del whole["metadata"]["labels"]["other"]
    assert first == node_pod(whole)
    assert first is not None
    assert first.labels == {"team": "a"}
    assert first.annotations == {"memory-limit": "6GiB"}
    assert first.uids == (UID, "9" * 32)
    assert first.containers == ("first", "train", "side")
    assert [(claim, holder.container) for claim, holder in first.claims] == [
        ("a100", "train"),
        ("made", "train"),
    ]
    assert len(found) == 2
    assert "env" not in json.dumps(found)


@pytest.mark.thorough
def test_what_a_list_holds_is_never_in_memory_as_a_whole() -> None:
    """12,000 variables of each of 6 pods, which take ten times as much as Python's objects."""
    raw = listing(*[pod(12_000)] * 6)
    assert len(raw) > 2 << 20
    found: list[Any] = []
    tracemalloc.start()
    try:
        read_list((raw[at : at + 65536] for at in range(0, len(raw), 65536)), SHAPE, found.append)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 6
    assert most_bytes < 4 << 20


def test_a_list_may_have_more_pods_than_a_pod_has_entries() -> None:
    found: list[Any] = []
    read_list(
        [listing(*({"metadata": {"uid": str(n)}} for n in range(3_000)))], SHAPE, found.append
    )
    assert [each["metadata"]["uid"] for each in found] == [str(n) for n in range(3_000)]


def test_a_pod_has_no_more_entries_and_no_longer_texts_than_a_node_would_run() -> None:
    many = pod()
    many["spec"]["containers"] = [{"name": f"c{number}"} for number in range(5_000)]
    many["metadata"]["annotations"] = {"hamiregion.io/memory-limit": "1" * 100_000}
    found: list[Any] = []
    read_list([listing(many)], SHAPE, found.append)
    kept = node_pod(found[0])
    assert kept is not None
    assert len(kept.containers) == 1_001
    (text,) = kept.annotations.values()
    assert len(text) < 200
    assert not text.isdigit(), "a text that was cut means nothing"


def test_nesting_of_any_depth_is_passed_over() -> None:
    deep = b'{"metadata": {}, "items": [{"spec": %s%s}]}' % (b"[" * 200_000, b"]" * 200_000)
    found: list[Any] = []
    read_list([deep], SHAPE, found.append)
    assert found == [{}]


def test_events_come_as_soon_as_they_are_whole() -> None:
    events = [{"type": kind, "object": pod()} for kind in ("ADDED", "BOOKMARK")]
    sent: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number, event in enumerate(events):
            sent.append(number)
            yield json.dumps(event).encode() + b"\n"

    seen = []
    for kind, item in read_events(pieces(), SHAPE):
        seen.append((kind, item["metadata"]["name"], len(sent)))
    assert seen == [("ADDED", "bert-0", 1), ("BOOKMARK", "bert-0", 2)]


def test_an_error_within_a_watch_has_its_status_and_its_words() -> None:
    status = {"kind": "Status", "code": 410, "message": "too old", "reason": "Expired"}
    raw = json.dumps({"type": "ERROR", "object": status}).encode()
    with pytest.raises(KubernetesError, match="too old") as caught:
        list(read_events([raw], SHAPE))
    assert caught.value.status == 410


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "items", "spec", "name", "uid", "containers", "object", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_no_document_of_any_shape_is_more_than_an_error(document: Any, is_list: bool) -> None:
    raw = json.dumps(document).encode()
    with contextlib.suppress(KubernetesError):
        if is_list:
            read_list([raw], SHAPE, node_pod)
        else:
            for _, item in read_events([raw], SHAPE):
                node_pod(item)
    read_object([raw], SHAPE)
