"""Metrics of nodes and certificates."""

from __future__ import annotations

import datetime
from pathlib import Path

from api.core.node import Node, NodeSpec, NodeStatus
from api.meta.types import Condition, ObjectMeta
from master.auth import pki
from master.cluster_metrics import MAX_CONDITIONS, certificate_metrics, node_metrics
from reconcile.exposition import format_families

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def node(name: str, *conditions: tuple[str, str], unschedulable: bool = False) -> Node:
    return Node(
        metadata=ObjectMeta(name=name),
        spec=NodeSpec(unschedulable=unschedulable),
        status=NodeStatus(conditions=tuple(Condition(type=type_, status=status) for type_, status in conditions)),
    )


def lines(*nodes: Node) -> list[str]:
    return [line for line in format_families(node_metrics(nodes)).splitlines() if not line.startswith("#")]


def test_condition_of_a_node_is_one_of_three_statuses() -> None:
    assert lines(node("n1", ("Ready", "Unknown"), unschedulable=True)) == [
        'kube_node_status_condition{condition="Ready",node="n1",status="false"} 0',
        'kube_node_status_condition{condition="Ready",node="n1",status="true"} 0',
        'kube_node_status_condition{condition="Ready",node="n1",status="unknown"} 1',
        'kube_node_spec_unschedulable{node="n1"} 1',
    ]


def test_node_cannot_make_many_or_odd_series() -> None:
    conditions = [("Ready", "True"), ('x"} 1\nevil{a="', "True"), *((f"C{number}", "True") for number in range(1000))]
    found = lines(node("n1", *conditions))
    assert len(found) == 3 * (MAX_CONDITIONS - 1) + 1
    assert not [line for line in found if "evil" in line]


def test_ends_of_the_masters_certificates(tmp_path: Path) -> None:
    authority = pki.authority(tmp_path, NOW)
    pki.server_certificate(authority, tmp_path, ["127.0.0.1"], NOW)
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nno\n")
    ends = pki.certificate_ends(tmp_path)
    assert ends == dict.fromkeys(("ca.crt", "server.pem", "trusted.crt"), authority.certificate.not_valid_after_utc)
    assert f'{{certificate="ca.crt"}} {ends["ca.crt"].timestamp()}' in format_families((certificate_metrics(ends),))
