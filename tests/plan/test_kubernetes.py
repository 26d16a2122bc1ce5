"""Access to the API server, by a pod's account and by kubeconfig files."""

import base64
import json
import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kubernetes.server import TOKEN, FakeApi
from support.certificates import Authority, needs_openssl
from support.wait import PATIENCE_S

from libhamiregion.plan import KubernetesError, kubernetes
from libhamiregion.plan.kubernetes import KubernetesApi

pytest.importorskip("urllib3", reason="needs the extra kubernetes")

ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def config(path: Path, user: Mapping[str, Any], **cluster: Any) -> str:
    document = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://[fd00::1]:6443/", **cluster}}],
        "users": [{"name": "u", "user": dict(user)}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def listed(kubeconfig: str | None) -> int:
    """How many pods the server lists."""
    api = KubernetesApi(kubeconfig)
    with api.get("/api/v1/pods", {}, accept=ACCEPT, silence_s=PATIENCE_S) as response:
        return len(json.loads(response.read())["items"])


@needs_openssl
def test_a_server_is_verified_and_a_client_shows_its_certificate(tmp_path):
    authority = Authority.in_directory(tmp_path / "authority")
    certificate, key = authority.issue("client")
    words = "# Zertifizierungsstelle f\u00fcr Pr\u00fcfungen\n".encode()
    (tmp_path / "ca").write_bytes(words + authority.certificate.read_bytes())
    data = base64.b64encode(certificate.read_bytes()).decode()
    user = {"token": TOKEN, "client-certificate-data": data, "client-key": str(key)}
    with FakeApi(authority.issue("api", "IP:127.0.0.1")) as api:
        api.context.verify_mode = ssl.CERT_REQUIRED
        api.context.load_verify_locations(authority.certificate)
        trusted = {"server": api.url, "certificate-authority": "ca"}
        assert listed(config(tmp_path / "c", user, **trusted)) == 0
        with pytest.raises(KubernetesError):
            listed(config(tmp_path / "c", {"token": TOKEN}, **trusted))
        with pytest.raises(KubernetesError, match="verify failed"):
            listed(config(tmp_path / "c", user, server=api.url))


def test_a_token_in_a_file_is_read_for_each_request(tmp_path):
    with FakeApi() as api:
        path = config(tmp_path / "c", {"tokenFile": "token"}, server=api.url)
        (tmp_path / "token").write_text("old")
        with pytest.raises(KubernetesError, match="401") as caught:
            listed(path)
        assert caught.value.status == 401
        (tmp_path / "token").write_text(TOKEN)
        assert listed(path) == 0


def test_a_kubeconfig_may_be_a_pipe(tmp_path):
    """As ``kubectl --kubeconfig <(...)`` takes it."""
    with FakeApi() as api:
        content = api.kubeconfig(tmp_path).read_bytes()
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_bytes, args=(content,), daemon=True)
        writer.start()
        assert listed(str(fifo)) == 0
        writer.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"auth-provider": {}}, {}),
        ({"exec": {}}, {}),
        ({}, {"server": 7}),
        ({"client-certificate-data": "%"}, {}),
        ({}, {"certificate-authority": "empty"}),
        ({"tokenFile": 7}, {}),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path, user, cluster):
    (tmp_path / "empty").touch()
    with pytest.raises(KubernetesError, match=str(tmp_path / "c")):
        listed(config(tmp_path / "c", user, **cluster))


@pytest.mark.parametrize(
    "content", ["", "[", "7", "current-context: x", "{current-context: a, contexts: 7}"]
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path, content):
    (tmp_path / "c").write_text(content)
    with pytest.raises(KubernetesError, match=str(tmp_path / "c")):
        listed(str(tmp_path / "c"))


@needs_openssl
def test_a_pod_uses_its_own_account(tmp_path, monkeypatch):
    authority = Authority.in_directory(tmp_path)
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with FakeApi(authority.issue("api", "IP:127.0.0.1")) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.url.rpartition(":")[2])
        with pytest.raises(KubernetesError):
            listed(None)
        (tmp_path / "token").write_text(TOKEN)
        assert listed(None) == 0
