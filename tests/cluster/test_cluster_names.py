"""Names of 1,300 pods from a real API server."""

import time
from pathlib import Path
from typing import Any

from api_server import PATCH, Cluster, pod, pods_path
from figures import Figure

from libhamiregion.node import KubernetesNames, PodName

NODE = "node-of-many"
ID = "9b0c6f5d" * 8


def test_1300_pods_are_named_by_one_list(cluster: Cluster, tmp_path: Path, figure: Figure) -> None:
    cluster.namespace("many")
    connection = cluster.connect()
    made: list[dict[str, Any]] = [
        cluster.must("POST", pods_path("many"), pod(f"bert-{number}", NODE), connection=connection)
        for number in range(1300)
    ]
    connection.close()
    running = {"name": "train", "containerID": f"containerd://{ID}", "image": "x", "imageID": "x"}
    running |= {"ready": True, "restartCount": 0}
    status = {"status": {"containerStatuses": [running]}}
    cluster.must("PATCH", f"{pods_path('many', 'bert-7')}/status", status, kind=PATCH)
    elsewhere = cluster.pod("many", "elsewhere", "another-node")

    config = cluster.kubeconfig(tmp_path / "kubeconfig")
    for about in ("names of 1,300 pods, with the first use of what reads them", "the same again"):
        names = KubernetesNames(NODE, kubeconfig=config, wait_s=60.0)
        began = time.monotonic()
        found = [names.resolve(each["metadata"]["uid"], "train") for each in made]
        figure(about, time.monotonic() - began)
        if about != "the same again":
            names.close()
    assert names.last_error is None
    assert found == [PodName("many", f"bert-{number}", "train") for number in range(1300)]
    assert names.resolve(None, None, ID) == PodName("many", "bert-7", "train")
    assert names.resolve(elsewhere, "train") is None
    names.close()
