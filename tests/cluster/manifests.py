"""The manifests of deploy/, rendered as people render them, and applied."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from build_apiserver import cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api_server import Cluster

KUSTOMIZE = Path(__file__).parents[2] / "deploy" / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
NAMESPACE = "hamiregion"


def rendered(directory: Path, overlay: str, components: Sequence[str] = ()) -> str:
    """An overlay with components, as text."""
    tree = directory / "kustomize"
    shutil.copytree(KUSTOMIZE, tree, dirs_exist_ok=True)
    own = tree / "overlays" / "own"
    own.mkdir(exist_ok=True)
    paths = [f"../../components/{component}" for component in components]
    own.joinpath("kustomization.yaml").write_text(
        json.dumps({"resources": [f"../{overlay}"], "components": paths})
    )
    return kustomize(own)


def kustomize(directory: Path) -> str:
    done = subprocess.run(
        [cache() / "kubectl", "kustomize", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kubectl(cluster: Cluster, text: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    """`kubectl WORDS`, with `-f -` if there is a text, by the kubectl of the server's version."""
    directory = cluster.directory
    return subprocess.run(
        [
            *(str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig(directory / "admin"))),
            *("--cache-dir", str(directory / "kubectl-cache")),
            *(words if text is None else (*words, "-f", "-")),
        ],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def apply(cluster: Cluster, text: str) -> str:
    done = kubectl(cluster, text, "apply")
    assert done.returncode == 0, done.stderr
    return done.stdout
