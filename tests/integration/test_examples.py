"""The examples do what they say, run as programs."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from exposition import NodeFiles, parsed

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_exporter_of_ones_own_serves_the_regions_beside_its_own_metrics(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    golden = files.golden("1.2-many-processes")
    command = [sys.executable, str(EXAMPLES / "own_exporter.py")]
    options = ["--root", str(files.root), "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(address, timeout=30) as answer:
                found = parsed(answer.read())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert found.value("node_jobs_load") >= 0
    # Others on this machine may have regions of their own.
    pod_uid = golden.path.parent.name.partition("_")[0]
    used = sum(found.series("hami_vgpu_memory_used_bytes", pod=pod_uid).values())
    assert used == sum(golden.expected["device_used"])
    assert found.value("hamiregion_containers", region="present") >= 1
