"""Several people watch a node while its exporter serves: all of them under the chart's limit."""

import os
import subprocess
import threading

import pytest
from support.exporter_process import COMMAND as EXPORTER
from support.exporter_process import ExporterProcess
from support.node_scene import GPU, OTHER_GPU, NodeScene
from support.own_cgroups import container_memory
from support.scrapers import ask
from support.wait import PATIENCE_S, eventually

from libhamiregion.services.document_socket import VARIABLE

COMMAND = EXPORTER[:-1]
CONTAINERS, PROCESSES, PICTURES = 256, 4, 3
VIEWERS = 3


def watch(inside: tuple[str, ...], env: dict[str, str], done: list[int]) -> None:
    """What `kubectl hamiregion top` runs in a pod: one stream, and each picture of it."""
    with subprocess.Popen(
        [*inside, *COMMAND, "observe", "--watch=1"], env=env, stdout=subprocess.PIPE
    ) as stream:
        for _ in range(PICTURES):
            document = stream.stdout.readline()
            shown = subprocess.run(
                [*inside, *COMMAND, "top", "--from", "-"],
                input=b'{"node": "n", "observation": %s}\n' % document.strip(),
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
            )
            is_whole = shown.stdout.count(b"research/") >= CONTAINERS
            done.append(shown.returncode if is_whole else -1)
        stream.terminate()
    done.append(stream.returncode)


@pytest.mark.slow
def test_three_viewers_fit_beside_the_exporter(tmp_path):
    scene = NodeScene(tmp_path / "node")
    for number in range(CONTAINERS):
        region = scene.container("train", pod=f"bert-{number}", uuids=[GPU, OTHER_GPU])
        for pid in range(PROCESSES):
            region.add_process(1000 + pid, dict.fromkeys((0, 1), 300 << 20))
    env = {**os.environ, VARIABLE: str(tmp_path / "observe.sock")}
    done: list[int] = []
    with (
        container_memory() as inside,
        ExporterProcess(*scene.options, env=env, inside=inside) as exporter,
    ):
        exporter.wait_until_ready()
        assert ask(exporter.url, "/metrics").status == 200
        viewers = [threading.Thread(target=watch, args=(inside, env, done)) for _ in range(VIEWERS)]
        for each in viewers:
            each.start()
        eventually(lambda: len(done) == VIEWERS * (PICTURES + 1))
        for each in viewers:
            each.join()
        assert done == [0] * len(done)
        assert exporter.process.poll() is None, exporter.log
        assert ask(exporter.url, "/metrics").status == 200
    scene.close()
