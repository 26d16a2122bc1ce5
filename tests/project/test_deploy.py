"""What deploy/ ships is valid for Prometheus and names only what there is.

tests/cluster has the chart.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support.process import finished

yaml = pytest.importorskip("yaml")

from libhamiregion.exporter import FAMILIES  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "libhamiregion"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")


def test_rules_and_dashboard_of_the_chart_are_those_of_deploy():
    for link in (DEPLOY / "prometheus" / "rules.yaml", DEPLOY / "grafana" / "dashboard.json"):
        file = CHART / "files" / link.name
        assert link.samefile(file)
        # Helm renders a missing or empty file as nothing.
        assert file.stat().st_size > 5000


@needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then():
    directory = DEPLOY / "prometheus"
    for words in (("check", "rules", "rules.yaml"), ("test", "rules", "rules_test.yaml")):
        done = finished(["promtool", *words], cwd=directory)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested():
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tested = {
        case["alertname"]
        for scene in tests["tests"]
        for case in scene["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert tested == alerts


def test_rules_and_dashboard_ask_for_metrics_that_there_are():
    known = {family.name for family in FAMILIES}
    text = (DEPLOY / "prometheus" / "rules.yaml").read_text()
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) > 20
    queries = [
        each["definition"] for each in dashboard["templating"]["list"] if "definition" in each
    ]
    for source in (text, *expressions, *queries):
        asked = {
            re.sub("_(sum|count)$", "", name)
            for name in re.findall(r"\b(?:hami|hamiregion)_[a-z_]+", source)
        }
        assert asked <= known, source


def test_the_image_has_what_the_chart_runs():
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    extras = set(re.findall(r"\[([a-z,]+)\]", dockerfile))
    assert extras == {"cli,exporter,kubernetes,plan"}
    (user,) = re.findall(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert user != "0"
