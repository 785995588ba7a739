"""The files in monitoring/: what promtool says of them, and when each alert fires."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.testbed.prometheus import (
    DASHBOARDS,
    MONITORING,
    alert_rules,
    expressions,
    metric_names,
    promtool,
)

DAY = 86400


class Case(NamedTuple):
    """Series with which an alert fires, and with which it does not, after `minutes`. Values in promtool's notation."""

    alert: str
    firing: dict[str, str]
    silent: dict[str, str]
    minutes: int = 30


def up(value: int, job: str, **labels: str) -> dict[str, str]:
    more = "".join(f',{name}="{text}"' for name, text in labels.items())
    return {f'up{{job="{job}"{more}}}': f"{value}x60"}


def constant(name: str, value: float) -> dict[str, str]:
    return {name: f"{value}x60"}


def growing(name: str, step: float) -> dict[str, str]:
    return {name: f"0+{step}x60"}


READY, PRESSURE = 'condition="Ready",node="n1"', 'condition="DiskPressure",node="n1"'
REQUESTS = 'apiserver_request_duration_seconds_bucket{verb="%s",le="%s"}'
DROPPED = 'podlane_sdn_dropped_packets{node="n1",reason="%s",owner="node"}'
THREE_NODES = {key: value for name in ("n1", "n2", "n3") for key, value in up(1, "podlane-sdn", node=name).items()}
TRANSACTIONS = "podlane_store_transaction_duration_seconds_bucket"

CASES = (
    Case("PodlaneMasterDown", up(0, "podlane-master"), up(1, "podlane-master")),
    Case("PodlaneMasterDown", up(1, "podlane-sdn", node="n1"), up(1, "podlane-master")),
    Case("PodlaneNodeAgentDown", up(0, "podlane-node-agent", node="n1"), up(1, "podlane-node-agent", node="n1")),
    Case(
        "PodlaneSdnDown",
        up(0, "podlane-sdn", node="n1") | up(1, "podlane-node-agent", node="n1"),
        up(0, "podlane-sdn", node="n1") | up(0, "podlane-node-agent", node="n1"),
    ),
    Case(
        "PodlaneMasterCertificateEnds",
        constant('podlane_certificate_expiration_timestamp_seconds{certificate="ca.crt"}', 29 * DAY),
        constant('podlane_certificate_expiration_timestamp_seconds{certificate="ca.crt"}', 31 * DAY),
    ),
    Case(
        "PodlaneNodeCertificateEnds",
        constant('kubelet_certificate_manager_client_ttl_seconds{node="n1"}', 13 * DAY),
        constant('kubelet_certificate_manager_client_ttl_seconds{node="n1"}', 15 * DAY)
        | {'kubelet_certificate_manager_server_ttl_seconds{node="n1"}': "1e18x60"},
    ),
    Case(
        "PodlaneStoreFails",
        growing("podlane_store_failed_transactions_total", 1),
        constant("podlane_store_failed_transactions_total", 7),
    ),
    Case(
        "PodlaneStoreFillsDisk",
        {"podlane_store_disk_free_bytes": "1e12-1e9x480"},
        constant("podlane_store_disk_free_bytes", 1e12),
        minutes=450,
    ),
    Case("PodlaneStoreFillsDisk", constant("podlane_store_disk_free_bytes", 9e8), {}, minutes=45),
    Case(
        "PodlaneStoreSlow",
        {f'{TRANSACTIONS}{{le="0.5"}}': "0x60", f'{TRANSACTIONS}{{le="1.0"}}': "0+9x60"}
        | {f'{TRANSACTIONS}{{le="+Inf"}}': "0+9x60"},
        {f'{TRANSACTIONS}{{le="0.5"}}': "0+9x60", f'{TRANSACTIONS}{{le="1.0"}}': "0+9x60"}
        | {f'{TRANSACTIONS}{{le="+Inf"}}': "0+9x60"},
    ),
    Case(
        "PodlaneRequestErrors",
        growing('apiserver_request_total{code="503"}', 6) | growing('apiserver_request_total{code="200"}', 94),
        growing('apiserver_request_total{code="503"}', 4) | growing('apiserver_request_total{code="404"}', 96),
    ),
    Case(
        "PodlaneRequestsSlow",
        constant(REQUESTS % ("LIST", "1.0"), 0) | growing(REQUESTS % ("LIST", "2"), 9)
        | growing(REQUESTS % ("LIST", "+Inf"), 9),
        constant(REQUESTS % ("WATCH", "1.0"), 0) | growing(REQUESTS % ("WATCH", "2"), 9)
        | growing(REQUESTS % ("WATCH", "+Inf"), 9) | growing(REQUESTS % ("LIST", "1.0"), 9)
        | growing(REQUESTS % ("LIST", "+Inf"), 9),
    ),
    Case(
        "PodlaneObjectsFail",
        constant('podlane_controller_failing_objects{name="jobs"}', 1),
        constant('podlane_controller_failing_objects{name="jobs"}', 0),
    ),
    Case(
        "PodlaneNodeNotReady",
        constant(f'kube_node_status_condition{{{READY},status="true"}}', 0)
        | constant(f'kube_node_status_condition{{{READY},status="unknown"}}', 1),
        constant(f'kube_node_status_condition{{{READY},status="true"}}', 1)
        | constant(f'kube_node_status_condition{{{READY},status="unknown"}}', 0),
    ),
    Case(
        "PodlaneNodePressure",
        constant(f'kube_node_status_condition{{{PRESSURE},status="true"}}', 1),
        constant(f'kube_node_status_condition{{{PRESSURE},status="true"}}', 0),
    ),
    Case(
        "PodlaneNodeProblem",
        constant('kube_node_status_condition{condition="podlane.io/TunnelsLost",node="n1",status="true"}', 1),
        constant('kube_node_status_condition{condition="podlane.io/TunnelsLost",node="n1",status="true"}', 0)
        | constant(f'kube_node_status_condition{{{READY},status="true"}}', 1),
    ),
    Case(
        "PodlanePeersMissing",
        constant('podlane_sdn_peers{node="n1"}', 1) | THREE_NODES,
        constant('podlane_sdn_peers{node="n1"}', 2) | THREE_NODES,
    ),
    Case(
        "PodlanePeersLost",
        constant('podlane_sdn_lost_peers{node="n1"}', 1),
        constant('podlane_sdn_lost_peers{node="n1"}', 0),
    ),
    Case(
        "PodlaneDropsOfForeignPackets",
        growing(DROPPED % "spoofed", 120),
        growing(DROPPED % "spoofed", 30) | growing(DROPPED % "other_project", 120),
    ),
    Case("PodlaneDropsOfConnections", growing(DROPPED % "no_vnid", 120), growing(DROPPED % "no_vnid", 30)),
    Case(
        "PodlaneAddressesUsedUp",
        constant('podlane_sdn_addresses{node="n1",state="free"}', 9),
        constant('podlane_sdn_addresses{node="n1",state="free"}', 10)
        | constant('podlane_sdn_addresses{node="n1",state="used"}', 1),
    ),
    Case(
        "PodlaneDrift",
        growing('podlane_sdn_drift_total{node="n1",what="flows"}', 1),
        growing('podlane_sdn_drift_total{node="n1",what="flows"}', 0.2),
    ),
    Case(
        "PodlanePodRestarts",
        growing('container_start_time_seconds{job="podlane-resource",pod="p"}', 60),
        constant('container_start_time_seconds{job="podlane-resource",pod="p"}', 60),
    ),
)  # fmt: skip


def document(case: Case, *, fires: bool) -> dict[str, Any]:
    series = case.firing if fires else case.silent
    expression = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{case.alert} {'fires' if fires else 'is silent'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": f"{case.minutes}m", "exp_samples": expected}],
    }


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    documents = [document(case, fires=fires) for case in CASES for fires in (True, False)]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(MONITORING / "alerts.yaml")], "tests": documents}))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {rule["alert"] for rule in alert_rules()} == {case.alert for case in CASES}


def test_wrong_expectation_of_an_alert_fails(tmp_path: Path) -> None:
    case = CASES[0]._replace(firing=CASES[0].silent)
    path = tmp_path / "tests.yaml"
    rules = [str(MONITORING / "alerts.yaml")]
    path.write_text(yaml.safe_dump({"rule_files": rules, "tests": [document(case, fires=True)]}))
    assert promtool("test", "rules", path).returncode != 0


def test_configuration_and_rules_are_valid(tmp_path: Path) -> None:
    """The files that the configuration names must exist for promtool, so they are replaced."""
    for name in ("podlane.token", "podlane-ca.crt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "podlane-nodes.yaml").write_text('- targets: ["10.0.0.1:10250"]\n  labels: {node: "n1"}\n')
    text = (MONITORING / "prometheus.yaml").read_text().replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yaml").write_text(text)
    (tmp_path / "alerts.yaml").write_text((MONITORING / "alerts.yaml").read_text())
    done = promtool("check", "config", tmp_path / "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alert_rules())} rules found" in done.stdout
    (tmp_path / "alerts.yaml").write_text(
        (MONITORING / "alerts.yaml").read_text().replace("increase(", "increases(", 1)
    )
    assert promtool("check", "config", tmp_path / "prometheus.yaml").returncode != 0


def test_every_alert_says_what_is_wrong_and_where_to_look() -> None:
    for rule in alert_rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]


def test_dashboards_have_unique_names_and_panels() -> None:
    documents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert [document["uid"] for document in documents] == ["podlane-master", "podlane-network", "podlane-node"]
    for dashboard in documents:
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids)) > 15
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]}
        assert len(places) == len(ids)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le, verb) (rate(a_bucket{verb!~"WATCH"}[5m])) > 1e9', {"a_bucket"}),
        ('up{job="x"} == 0 unless on (node) up == 1', {"up"}),
        ("a < scalar(count(b)) - 1 or (c - time()) / 86400", {"a", "b", "c"}),
    ],
)
def test_metric_names_are_found_in_expressions(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def test_expressions_use_only_known_functions() -> None:
    """A function that `metric_names` does not know would count as the name of a metric."""
    prefixes = ("apiserver_", "authentication_", "container_", "kube_", "kubelet_", "node_", "pod_", "podlane_")
    others = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "prober_probe_total"}
    others |= {"rest_client_requests_total", "workqueue_adds_total", "workqueue_retries_total"}
    for place, expression in expressions():
        for name in metric_names(expression):
            assert name.startswith(prefixes) or name in others | {"workqueue_work_duration_seconds_sum"}, place
