"""The files that kubelet and Docker keep on a node, laid out as they lay them out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from libhamiregion.node import NodeNames

#: Linux's limit of a file name, which kubelet cuts its links to.
NAME_LIMIT = 255


def container_id(pod_uid: str, container: str) -> str:
    """The id that a container has."""
    return hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()


@attrs.frozen
class KubeletFiles:
    """Directories and files of names below one directory."""

    directory: Path

    @property
    def pods(self) -> Path:
        return self.directory / "log/pods"

    @property
    def containers(self) -> Path:
        return self.directory / "log/containers"

    @property
    def docker(self) -> Path:
        return self.directory / "docker/containers"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "kubelet/dra_manager_state"

    def names(self) -> NodeNames:
        return NodeNames(self.pods, self.containers, docker=self.docker, claims=self.checkpoint)

    def pod(self, uid: str, pod: str, *containers: str, namespace: str = "research") -> Path:
        path = self.pods / f"{namespace}_{pod}_{uid}"
        path.mkdir(parents=True, exist_ok=True)
        for each in containers:
            (path / each).mkdir(exist_ok=True)
        return path

    def container(self, id_: str, pod: str, container: str, *, namespace: str = "research") -> Path:
        """A link as kubelet makes it, to a file that need not be there."""
        stem = f"{pod}_{namespace}_{container}-{id_}"
        path = self.containers / f"{stem[: NAME_LIMIT - len('.log')]}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/nowhere/0.log")
        return path

    def docker_container(self, id_: str, name: object) -> Path:
        path = self.docker / id_ / "config.v2.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ID": id_, "Name": name, "Config": {"Env": ["A=b"]}}))
        return path

    def claims(self, claims: Mapping[str, tuple[str, Sequence[str]]], *, old: bool = False) -> None:
        """Replace kubelet's checkpoint: by UID each claim's name and its pods' UIDs."""
        entries = [
            {
                "ClaimUID": uid,
                "ClaimName": claim,
                "Namespace": "research",
                "PodUIDs": {pod: {} for pod in pods},
                "DriverState": {"gpu.hami.io": {"Devices": []}},
            }
            for uid, (claim, pods) in claims.items()
        ]
        document: dict[str, Any] = {"version": "v1", "entries": entries, "checksum": 17}
        if not old:
            kind = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}
            document = {"Data": json.dumps({**kind, "Entries": entries}), "Checksum": 17}
        self.write_checkpoint(json.dumps(document))

    def write_checkpoint(self, text: str) -> None:
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        new = self.checkpoint.with_suffix(".new")
        new.write_text(text, errors="surrogateescape")
        new.replace(self.checkpoint)
