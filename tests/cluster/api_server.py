"""A real API server with a real etcd, on this machine's loopback: no controllers, no scheduler.

So a pod is on a node because the test has put it there, and nothing runs.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import attrs
import yaml
from build_apiserver import cache
from support.certificates import Authority
from support.wait import PATIENCE_S, eventually
from typing_extensions import Self

ADMIN = "token-of-the-administrator"
# Two busy cores, and a server that makes its first objects.
STARTING_S = 120.0
PATCH = "application/merge-patch+json"
RBAC_GROUP = "rbac.authorization.k8s.io"
RBAC = f"/apis/{RBAC_GROUP}/v1"


@attrs.frozen
class Answer:
    """What the API says: an HTTP status and an object."""

    status: int
    object: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.object.get("message"))


class Cluster:
    """etcd and the API server; a context manager. Everything lies below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubectl = cache() / "kubectl"
        authority = Authority.in_directory(directory / "certificates")
        self._authority = authority
        self._certificate, self._key = authority.issue("apiserver", "IP:127.0.0.1")
        self._client = authority.client()
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        (directory / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n')
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.start_etcd()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in list(self._running):
            self.kill(program)

    # ---- processes ----

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._run(
            "etcd",
            *("--data-dir", self.directory / "etcd", "--logger", "zap"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )

    def start(self, *, wait: bool = True) -> None:
        """Start the API server, and wait until it is ready."""
        self._run(
            "kube-apiserver",
            *("--etcd-servers", f"http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address", "127.0.0.1", "--secure-port", self.port),
            *("--cert-dir", self.directory / "certificates"),
            *("--tls-cert-file", self._certificate, "--tls-private-key-file", self._key),
            *("--token-auth-file", self.directory / "tokens.csv"),
            *("--authorization-mode", "RBAC"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-signing-key-file", self._key),
            *("--service-account-key-file", self._certificate),
            *("--service-cluster-ip-range", "10.0.0.0/24"),
            *("--endpoint-reconciler-type", "none"),
            # It would wait for what the controllers make.
            *("--disable-admission-plugins", "ServiceAccount"),
        )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        eventually(lambda: self.answers("/readyz"), STARTING_S)

    def wait_for_an_answer(self) -> None:
        """Wait until pods can be listed, which is some seconds before it calls itself ready."""
        eventually(lambda: self.answers("/api/v1/pods?limit=1"), STARTING_S)

    def answers(self, path: str, token: str = ADMIN) -> bool:
        """Whether a question is answered with 200."""
        server = self._running["kube-apiserver"]
        assert server.poll() is None, self.log("kube-apiserver")[-4000:]
        try:
            return self.ask("GET", path, token=token).status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """Tell the API server to end; it takes no connections then, and waits for watches."""
        self._running["kube-apiserver"].terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running["kube-apiserver"].wait(3)
        self.kill()

    def kill(self, program: str = "kube-apiserver") -> None:
        """End it with kill -9."""
        process = self._running.pop(program)
        process.kill()
        process.wait()

    def log(self, program: str) -> str:
        return (self.directory / f"{program}.log").read_text(errors="replace")

    def _run(self, program: str, *words: object) -> None:
        # It ends with the thread that starts it, and so with the tests, however these end.
        last = (shutil.which("setpriv"), "--pdeathsig", "KILL")
        with (self.directory / f"{program}.log").open("ab") as log:
            self._running[program] = subprocess.Popen(
                [str(word) for word in (*last, cache() / program, *words)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    # ---- questions ----

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str = ADMIN,
        kind: str = "application/json",
        connection: http.client.HTTPSConnection | None = None,
    ) -> Answer:
        """Ask the API; `path` as it stands in the URL."""
        opened = connection or self.connect()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        try:
            opened.request(method, path, None if body is None else json.dumps(body), headers)
            response = opened.getresponse()
            raw = response.read()
        finally:
            if connection is None:
                opened.close()
        found = json.loads(raw) if raw.startswith(b"{") else {"message": raw.decode()}
        return Answer(response.status, found)

    def must(self, method: str, path: str, body: object = None, **options: Any) -> dict[str, Any]:
        """Ask the API for what has to succeed."""
        answer = self.ask(method, path, body, **options)
        assert 200 <= answer.status <= 299, answer.object
        return answer.object

    def connect(self) -> http.client.HTTPSConnection:
        """A connection for many questions."""
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=PATIENCE_S, context=self._client
        )

    def kubeconfig(self, path: Path, token: str = ADMIN) -> Path:
        """A kubeconfig file with a token."""
        server = {
            "server": self.url,
            "certificate-authority": str(self._authority.certificate),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # ---- what there is ----

    def namespace(self, name: str) -> str:
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def pod(self, namespace: str, name: str, node: str, **metadata: Any) -> str:
        """Make a pod that is on a node; returns its UID."""
        made = self.must("POST", pods_path(namespace), pod(name, node, **metadata))
        return str(made["metadata"]["uid"])

    def annotate(self, namespace: str, name: str, annotations: dict[str, str | None]) -> None:
        """Set annotations of a pod; None removes one."""
        body = {"metadata": {"annotations": annotations}}
        self.must("PATCH", pods_path(namespace, name), body, kind=PATCH)

    def watcher(self, namespace: str) -> str:
        """Make the account `watcher`, which may list and watch pods; returns a token of it."""
        self.must("POST", accounts_path(namespace), {"metadata": {"name": "watcher"}})
        reads = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
        role = {"metadata": {"name": namespace}, "rules": [reads]}
        self.must("POST", f"{RBAC}/clusterroles", role)
        binding = {
            "metadata": {"name": namespace},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": "watcher", "namespace": namespace}],
        }
        self.must("POST", f"{RBAC}/clusterrolebindings", binding)
        return self.account_token(namespace, "watcher")

    def account_token(self, namespace: str, name: str) -> str:
        """A token of a service account, as kubelet gets one for a pod."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"{accounts_path(namespace, name)}/token"
        return str(self.must("POST", path, asked)["status"]["token"])


def pods_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


def accounts_path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/serviceaccounts" + (f"/{name}" if name else "")


def pod(name: str, node: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "train", "image": "registry.example/train:1"}],
        },
    }


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
