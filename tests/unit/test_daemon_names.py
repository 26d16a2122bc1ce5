"""Names of pods and containers that real servers tell: Docker's and Kubernetes' APIs."""

import http.server
import json
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pod_names import HOSTILE, ID, OTHER_UID, STATIC, UID

from libhamiregion.node import DockerApiNames, KubernetesNames, PodName, daemon_names

# ---- The Docker API, a real server on a unix socket ---------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with what the test has put into `server.answer`."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        server.answer(self)

    def reply(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "test"


class Server:
    """A threaded HTTP server, its requests, and what it answers."""

    def __init__(self, server: Any) -> None:
        self.server = server
        server.daemon_threads = True
        # Clients that give up are what some tests are about.
        server.handle_error = lambda *_: None
        server.asked = []
        server.answer = lambda handler: handler.reply(b"{}", 404)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def asked(self) -> list[str]:
        asked: list[str] = self.server.asked
        return asked

    def answers(self, answer: Callable[[Any], None]) -> None:
        self.server.answer = answer

    def answers_json(self, document: object, status: int = 200) -> None:
        self.answers(lambda handler: handler.reply(json.dumps(document).encode(), status))

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An HTTP server on a unix socket."""


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    path = tmp_path / "docker.sock"
    server = Server(UnixServer(str(path), Handler))
    yield server, path
    server.stop()


def test_the_docker_api_names_a_container(docker: tuple[Server, Path]) -> None:
    server, path = docker
    server.answers_json({"Id": ID, "Name": "/notebook_1"})
    names = DockerApiNames(path)
    assert names.resolve(None, None, ID) == PodName(None, None, "notebook_1")
    assert server.asked == [f"/containers/{ID}/json"]
    assert names.last_error is None


def test_nothing_is_asked_without_a_proper_id(docker: tuple[Server, Path]) -> None:
    server, path = docker
    names = DockerApiNames(path)
    for identifier in (None, "", "../info", ID + "/../x", ID + "\r\nHost: evil"):
        assert names.resolve(UID, "train", identifier) is None
    assert server.asked == []


def test_a_container_that_the_docker_api_does_not_know(docker: tuple[Server, Path]) -> None:
    server, path = docker
    server.answers_json({"message": "No such container"}, 404)
    names = DockerApiNames(path)
    assert names.resolve(None, None, ID) is None
    assert names.last_error is None


def test_a_failing_docker_api_is_a_miss_with_its_reason(docker: tuple[Server, Path]) -> None:
    server, path = docker
    names = DockerApiNames(path, timeout_s=0.5)
    answers: list[Callable[[Any], None]] = [
        lambda handler: handler.reply(b"{}", 500),
        lambda handler: handler.reply(b"no json"),
        lambda handler: handler.reply(b"{}"),
        lambda handler: handler.wfile.write(b"\x00" * 100),
        lambda handler: handler.reply(b" " * (5 << 20)),
        lambda _: time.sleep(1),
    ]
    for answer in answers:
        server.answers(answer)
        assert names.resolve(None, None, ID) is None
        assert names.last_error is not None
    assert DockerApiNames(path.parent / "none.sock").resolve(None, None, ID) is None


@pytest.mark.parametrize("name", [text for text in HOSTILE if text not in {"A", "a-"}])
def test_a_hostile_name_from_the_docker_api_names_nothing(
    docker: tuple[Server, Path], name: str
) -> None:
    server, path = docker
    server.answers_json({"Name": name})
    assert DockerApiNames(path).resolve(None, None, ID) is None


# ---- The Kubernetes API, a real local server ----------------------------------------------------


def pod(
    uid: str = UID,
    namespace: object = "research",
    name: object = "bert-0",
    *,
    containers: dict[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """A pod as the API shows it, as far as it matters."""
    statuses = [
        {"name": container, "containerID": f"containerd://{identifier}"}
        for container, identifier in (containers or {}).items()
    ]
    return {
        "metadata": {
            "uid": uid,
            "namespace": namespace,
            "name": name,
            **metadata,
        },
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def listing(*pods: object, token: str | None = None) -> dict[str, Any]:
    return {"kind": "PodList", "metadata": {"continue": token}, "items": list(pods)}


@pytest.fixture
def api() -> Iterator[Server]:
    pytest.importorskip("kubernetes")
    server = Server(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    server.answers_json(listing(pod(containers={"train": ID})))
    yield server
    server.stop()


@pytest.fixture
def kubeconfig(api: Server, tmp_path: Path) -> Path:
    host, port = api.server.server_address
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


def test_the_kubernetes_api_names_by_uid_and_by_container_id(api: Server, kubeconfig: Path) -> None:
    names = KubernetesNames("node-1", kubeconfig=kubeconfig)
    assert api.asked == [], "nothing is asked before the first question"
    assert names.resolve(UID, "train") == PodName("research", "bert-0", "train")
    assert names.resolve(None, None, ID) == PodName("research", "bert-0", "train")
    assert names.last_error is None
    (asked,) = api.asked
    assert asked.startswith("/api/v1/pods?")
    assert "fieldSelector=spec.nodeName%3Dnode-1" in asked


def test_a_listing_holds_for_a_while_also_for_pods_that_it_lacks(
    api: Server, kubeconfig: Path
) -> None:
    names = KubernetesNames(kubeconfig=kubeconfig, max_age_s=3600)
    for _ in range(3):
        assert names.resolve(OTHER_UID, "train") is None
    assert len(api.asked) == 1


def test_a_pod_that_the_listing_lacks_is_asked_for_when_it_is_old(
    api: Server, kubeconfig: Path
) -> None:
    names = KubernetesNames(kubeconfig=kubeconfig, max_age_s=0)
    assert names.resolve(OTHER_UID, "php") is None
    api.answers_json(listing(pod(OTHER_UID, "web", "shop")))
    assert names.resolve(OTHER_UID, "php") == PodName("web", "shop", "php")
    assert len(api.asked) == 2
    assert names.resolve(OTHER_UID, "php") == PodName("web", "shop", "php")
    assert len(api.asked) == 2


def test_long_listings_come_in_pages(api: Server, kubeconfig: Path) -> None:
    def answer(handler: Any) -> None:
        second = "continue=next" in handler.path
        page = listing(pod(OTHER_UID, "web", "shop")) if second else listing(pod(), token="next")
        handler.reply(json.dumps(page).encode())

    api.answers(answer)
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(OTHER_UID, "php") == PodName("web", "shop", "php")
    assert names.resolve(UID, "train") == PodName("research", "bert-0", "train")
    assert len(api.asked) == 2


def test_a_static_pod_is_found_by_the_uid_that_kubelet_uses(api: Server, kubeconfig: Path) -> None:
    mirror = {"kubernetes.io/config.mirror": STATIC}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": UID}
    api.answers_json(
        listing(
            pod(UID, "kube-system", "etcd", annotations=mirror, ownerReferences=[owner]),
        )
    )
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(STATIC, "etcd") == PodName("kube-system", "etcd", "etcd")


def test_no_pod_takes_the_name_of_another_by_calling_itself_its_mirror(
    api: Server, kubeconfig: Path
) -> None:
    mirror = {"kubernetes.io/config.mirror": UID, "kubernetes.io/config.hash": UID}
    api.answers_json(listing(pod(), pod(OTHER_UID, "evil", "thief", annotations=mirror)))
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(UID, "train") == PodName("research", "bert-0", "train")


@pytest.mark.parametrize(
    "document",
    [[], {}, {"items": {}}, {"items": "x"}, "x", None],
    ids=["list", "empty", "object", "text", "string", "null"],
)
def test_an_answer_that_is_no_listing_is_a_miss_with_its_reason(
    api: Server, kubeconfig: Path, document: object
) -> None:
    api.answers_json(document)
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(UID) is None
    assert isinstance(names.last_error, ValueError)


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_refusing_server_is_a_miss_with_its_reason_and_is_left_alone(
    api: Server, kubeconfig: Path, status: int
) -> None:
    api.answers_json({"kind": "Status", "code": status}, status)
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(UID) is None
    assert names.resolve(UID) is None
    assert str(status) in str(names.last_error)
    assert len(api.asked) == 1


def test_a_server_that_fails_later_leaves_the_last_listing(api: Server, kubeconfig: Path) -> None:
    names = KubernetesNames(kubeconfig=kubeconfig, max_age_s=0)
    assert names.resolve(UID, "train") is not None
    api.answers_json({}, 500)
    assert names.resolve(OTHER_UID) is None
    assert names.resolve(UID, "train") == PodName("research", "bert-0", "train")


@pytest.mark.parametrize(("limit", "node"), [("_LIST_LIMIT", None), ("NODE_LIST_LIMIT", "node-1")])
def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    api: Server, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, limit: str, node: str | None
) -> None:
    monkeypatch.setattr(daemon_names, limit, 1 << 20)
    api.answers_json(listing(pod(name="x" * (2 << 20))))
    names = KubernetesNames(node, kubeconfig=kubeconfig)
    assert names.resolve(UID) is None
    assert "too long" in str(names.last_error)


def test_a_listing_that_never_ends_is_given_up(
    api: Server, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_names, "_ANSWERS_S", 0.2)
    api.answers_json(listing(token="next"))
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(UID) is None
    assert isinstance(names.last_error, TimeoutError)


def test_no_kubeconfig_is_a_miss_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    names = KubernetesNames(kubeconfig=tmp_path / "none")
    assert names.resolve(UID) is None
    assert names.last_error is not None


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_from_the_kubernetes_api_name_nothing(
    api: Server, kubeconfig: Path, text: str
) -> None:
    api.answers_json(
        listing(
            pod(UID, text),
            pod(OTHER_UID, "web", text),
            pod(STATIC, "web", "shop", containers={text: ID}),
        )
    )
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(UID, "train") is None
    assert names.resolve(OTHER_UID, "train") is None
    assert names.resolve(None, None, ID) is None


def test_pods_of_any_shape_do_not_disturb_the_others(api: Server, kubeconfig: Path) -> None:
    odd = [None, 7, "x", [], {}, {"metadata": 7}, {"metadata": {"uid": 7}}, pod(name=None)]
    odd += [{"metadata": {"uid": OTHER_UID, "namespace": "a", "name": "b"}, "status": [1]}]
    api.answers_json(listing(*odd, pod(containers={"train": ID})))
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(None, None, ID) == PodName("research", "bert-0", "train")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match=r"libhamiregion\[kubernetes\]"):
        KubernetesNames()
