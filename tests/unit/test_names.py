"""Names of pods and containers, from files and from real servers."""

import contextlib
import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from region_bytes import truncate

from libhamiregion.node import (
    ChainedNames,
    DockerApiNames,
    DockerNames,
    KubernetesNames,
    PodLogNames,
    PodName,
)
from libhamiregion.node.names import NameResolver  # noqa: TC001 (a protocol to be checked)

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
OTHER_UID = "11111111-2222-3333-4444-555555555555"
STATIC = "7a1cf0d8e2b34c5696a7b8c9d0e1f203"
ID = "4f6c1d0e9b8a7f6e5d4c3b2a190817263544536271809faebdccdbea98765432"
OTHER_ID = "b" * 64

HOSTILE = [
    "a\nb",
    "\x1b[2J",
    'a"b',
    "a'b",
    "a\\b",
    "../../etc",
    "..",
    "a/b",
    "A",
    "-a",
    "a-",
    "a b",
    "a\x00b",
    "a" * 4096,
    "\u202e",
    "",
]

# ---- Pod log directories ------------------------------------------------------------------------


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    root = tmp_path / "pods"
    root.mkdir()
    (root / f"research_bert-0_{UID}" / "train").mkdir(parents=True)
    return root


def test_a_pods_log_directory_names_it(pods: Path) -> None:
    (pods / f"kube-system_etcd-node.example_{STATIC}" / "etcd").mkdir(parents=True)
    names = PodLogNames(pods)
    assert names.resolve(UID, "train") == PodName("research", "bert-0", "train")
    # Of static pods the UID has no dashes.
    assert names.resolve(STATIC) == PodName("kube-system", "etcd-node.example", "etcd")
    # Without a name the only container is meant.
    assert names.resolve(UID) == PodName("research", "bert-0", "train")
    (pods / f"research_bert-0_{UID}" / "sidecar").mkdir()
    assert names.resolve(UID) == PodName("research", "bert-0", None)


def test_pods_come_and_go_and_so_does_their_directory(tmp_path: Path) -> None:
    names = PodLogNames(tmp_path / "pods")
    assert names.resolve(OTHER_UID) is None
    other = tmp_path / "pods" / f"web_shop_{OTHER_UID}"
    other.mkdir(parents=True)
    assert names.resolve(OTHER_UID, "php") == PodName("web", "shop", "php")
    other.rmdir()
    assert names.resolve(OTHER_UID, "php") is None


def test_a_listing_is_kept_while_the_directory_stands_still(
    pods: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(pods, (1_000_000, 1_000_000))
    names = PodLogNames(pods)
    assert names.resolve(UID, "train") is not None
    monkeypatch.setattr(os, "scandir", None)
    assert names.resolve(UID, "train") is not None
    assert names.resolve(OTHER_UID, "train") is None


def test_hostile_log_directories_name_nothing(pods: Path) -> None:
    names = PodLogNames(pods)
    directories = [f"pod_{OTHER_UID}", f"research_a_b_{OTHER_UID}"]
    for text in HOSTILE:
        directories += [f"{text}_pod_{OTHER_UID}", f"research_{text}_{OTHER_UID}"]
        assert names.resolve(text, "train") is None
        assert text == "" or names.resolve(UID, text) is None
    for directory in directories:
        with contextlib.suppress(OSError, ValueError):
            (pods / directory).mkdir()
            assert names.resolve(OTHER_UID, "train") is None, directory
            (pods / directory).rmdir()
    # Two of one UID are both not believed.
    (pods / f"evil_impostor_{UID}").mkdir()
    assert names.resolve(UID, "train") is None


# ---- Docker's files -----------------------------------------------------------------------------


def docker_config(root: Path, name: object, identifier: str = ID) -> Path:
    (root / identifier).mkdir(parents=True, exist_ok=True)
    path = root / identifier / "config.v2.json"
    path.write_text(json.dumps({"ID": identifier, "Name": name, "Config": {"Env": ["A=b"]}}))
    return path


def test_dockers_file_names_the_container(tmp_path: Path) -> None:
    names = DockerNames(tmp_path)
    assert names.resolve(None, None, ID) is None
    docker_config(tmp_path, "/notebook_1")
    assert names.resolve(None, None, ID) == PodName(None, None, "notebook_1")
    # A name that kubelet gave is taken apart.
    docker_config(tmp_path, f"/k8s_train_bert-0_research_{UID}_3")
    assert names.resolve(None, None, ID) == PodName("research", "bert-0", "train")


def test_hostile_and_broken_files_of_docker_name_nothing(tmp_path: Path) -> None:
    names = DockerNames(tmp_path)
    for name in [*(text for text in HOSTILE if text != "A"), 7, None, ["a"]]:
        docker_config(tmp_path, name)
        # Docker itself allows a dash at the end.
        assert names.resolve(None, None, ID) in {None, PodName(None, None, "a-")}
    path = docker_config(tmp_path, "x")
    for text in ["", "{", "[]", "[" * 100_000, '{"Name": ', "null", '{"Name": "\udcff"}']:
        path.write_text(text, errors="surrogateescape")
        assert names.resolve(None, None, ID) is None
    docker_config(tmp_path, "x")
    for identifier in ["../" + ID, ID[:-1], ID + "\n", ID.upper(), "", "/" + ID]:
        assert DockerNames(tmp_path / "inner").resolve(None, None, identifier) is None


def test_links_fifos_and_endless_files_are_not_read(tmp_path: Path) -> None:
    names = DockerNames(tmp_path)
    path = docker_config(tmp_path, "x")
    assert names.resolve(None, None, ID) is not None
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    assert names.resolve(None, None, ID) is None
    path.unlink()
    os.mkfifo(path)
    assert names.resolve(None, None, ID) is None
    path.unlink()
    path.write_text(json.dumps({"Name": "x"}))
    truncate(path, 1 << 40)
    assert names.resolve(None, None, ID) is None


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


def test_a_docker_api_that_drips_is_given_up(docker: tuple[Server, Path]) -> None:
    server, path = docker
    stop = threading.Event()

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not stop.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    server.answers(drip)
    names = DockerApiNames(path, timeout_s=0.3)
    try:
        assert names.resolve(None, None, ID) is None
        assert isinstance(names.last_error, TimeoutError)
    finally:
        stop.set()


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
    annotations: dict[str, str] | None = None,
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
            "annotations": annotations,
        },
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


def test_pods_can_be_selected_by_label(api: Server, kubeconfig: Path) -> None:
    names = KubernetesNames(label_selector="hami.io/vgpu-node=node-1", kubeconfig=kubeconfig)
    names.resolve(UID)
    assert "labelSelector=hami.io/vgpu-node=node-1" in urllib.parse.unquote(api.asked[0])
    assert "fieldSelector" not in api.asked[0]


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
    api.answers_json(listing(pod(UID, "kube-system", "etcd", annotations=mirror)))
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(STATIC, "etcd") == PodName("kube-system", "etcd", "etcd")


def test_a_static_pod_whose_file_gives_it_a_uid_is_found(api: Server, kubeconfig: Path) -> None:
    mirror = {"kubernetes.io/config.mirror": OTHER_UID, "kubernetes.io/config.hash": OTHER_UID}
    api.answers_json(listing(pod(UID, "kube-system", "etcd", annotations=mirror)))
    names = KubernetesNames(kubeconfig=kubeconfig)
    assert names.resolve(OTHER_UID, "etcd") == PodName("kube-system", "etcd", "etcd")


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


@pytest.mark.parametrize("node", ["", "a,b", "a=b", "../x", "A", "a\n"])
def test_a_nodes_name_cannot_be_another_selector(node: str) -> None:
    pytest.importorskip("kubernetes")
    with pytest.raises(ValueError, match="not a node's name"):
        KubernetesNames(node)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match=r"libhamiregion\[kubernetes\]"):
        KubernetesNames()


# ---- Chains -------------------------------------------------------------------------------------


class Counting:
    """A resolver that knows some answers, and counts."""

    def __init__(self, **answers: PodName | None) -> None:
        self.answers = answers
        self.asked: list[str | None] = []

    def resolve(
        self,
        pod_uid: str | None,
        container_name: str | None = None,  # noqa: ARG002
        container_id: str | None = None,  # noqa: ARG002
    ) -> PodName | None:
        self.asked.append(pod_uid)
        return self.answers.get(pod_uid or "")


FULL = PodName("research", "bert-0", "train")
PARTIAL = PodName("research", "bert-0", None)


def test_resolvers_are_asked_in_order_until_one_knows() -> None:
    first, second, third = Counting(), Counting(a=FULL), Counting(a=PodName("x", "y", "z"))
    names: NameResolver = ChainedNames([first, second, third])
    assert names.resolve("a") == FULL
    assert (first.asked, second.asked, third.asked) == (["a"], ["a"], [])


def test_an_answer_is_asked_for_once() -> None:
    resolver = Counting(a=FULL)
    names = ChainedNames([resolver], retry_s=0)
    assert [names.resolve("a") for _ in range(3)] == [FULL] * 3
    assert resolver.asked == ["a"]


def test_a_miss_holds_for_a_while_only() -> None:
    resolver = Counting()
    patient = ChainedNames([resolver], retry_s=3600)
    assert patient.resolve("a") is None
    assert patient.resolve("a") is None
    assert resolver.asked == ["a"]
    eager = ChainedNames([resolver], retry_s=0)
    assert eager.resolve("a") is None
    resolver.answers["a"] = FULL
    assert eager.resolve("a") == FULL


def test_a_fuller_answer_of_a_later_resolver_is_preferred() -> None:
    assert ChainedNames([Counting(a=PARTIAL), Counting(a=FULL)]).resolve("a") == FULL
    assert ChainedNames([Counting(a=PARTIAL), Counting()]).resolve("a") == PARTIAL


def test_an_incomplete_answer_is_tried_again() -> None:
    resolver = Counting(a=PARTIAL)
    names = ChainedNames([resolver], retry_s=0)
    assert names.resolve("a") == PARTIAL
    resolver.answers["a"] = FULL
    assert names.resolve("a") == FULL


def test_the_cache_is_bounded_and_forgets_the_unused_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("libhamiregion.node.names._KEPT_LIMIT", 2)
    resolver = Counting(a=FULL, b=FULL, c=FULL)
    names = ChainedNames([resolver])
    for uid in ("a", "b", "a", "c", "a", "b"):
        names.resolve(uid)
    assert resolver.asked == ["a", "b", "c", "b"]


def test_files_are_tried_before_a_daemon(pods: Path, tmp_path: Path) -> None:
    docker_config(tmp_path / "docker", "/notebook_1", OTHER_ID)
    daemon = Counting()
    names = ChainedNames([PodLogNames(pods), DockerNames(tmp_path / "docker"), daemon])
    assert names.resolve(UID, "train", ID) == FULL
    assert names.resolve(None, None, OTHER_ID) == PodName(None, None, "notebook_1")
    assert daemon.asked == []


def test_the_host_package_loads_neither_nvml_nor_kubernetes_nor_http() -> None:
    script = (
        "import sys, libhamiregion.node; "
        "print([m for m in ('pynvml', 'kubernetes', 'urllib3', 'http.client') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n"
