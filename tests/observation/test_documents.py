"""What is made of an observation reads nothing else: no file, no /proc, no region."""

import sys

import pytest
from support.lock_bytes import NOBODY, hold, let_go
from support.process import finished
from support.region_file import RegionFile

from libhamiregion import Layout
from libhamiregion.node import Observer
from libhamiregion.observation.json import to_json
from libhamiregion.testing import FakeNode

pytestmark = pytest.mark.root

# Once before the hook: what is imported on the way may be read.
READS_NOTHING = """
import sys
from libhamiregion.cli.views import Replay
from libhamiregion.doctor import diagnose
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import node_processes
from libhamiregion.observation.json import from_json, to_json
from libhamiregion.report.recorder import read_samples

def use():
    seen = from_json(text)
    exporter = NodeExporter(observer=Replay(seen))
    made = diagnose(seen), node_processes(seen), read_samples(seen), exporter.render()
    return *made, exporter.page(), to_json(seen)

def refuse(event, arguments):
    if event in {"open", "os.listdir", "os.scandir", "ctypes.dlopen", "socket.connect"}:
        raise AssertionError(f"{event} {arguments}")

text = sys.stdin.read()
use()
sys.addaudithook(refuse)
print(*(each.kind.value for each in use()[0]))
try:
    open("/proc/self/stat")
except AssertionError:
    print("refused")
"""


def test_findings_rows_samples_series_and_page_are_functions_of_the_document(tmp_path):
    with FakeNode(tmp_path, containers=3, processes=1) as fake:
        (path,) = fake.containers[0].directory.glob("*.cache")
        file = RegionFile(path, Layout.V1_2)
        file.add_process(NOBODY, {0: 1 << 20})
        file.put("recent_kernel", -1)
        hold(file, NOBODY)
        with fake.node() as node:
            text = to_json(Observer(node).observe())
        # Or the node's own process would wait for it to detach.
        let_go(file)
    answer = finished([sys.executable, "-c", READS_NOTHING], input=text)
    assert answer.returncode == 0, answer.stderr
    *kinds, refused = answer.stdout.split()
    assert {"dead_process_counted", "lock_stuck"} <= set(kinds)
    assert refused == "refused"
