"""Podlane's network under a kubelet, in a cluster whose other node has Podlane's agent. Both nodes behave alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.kubernetes_nodes import KubeletCluster
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.wait import wait_until

LACKING = missing((*CONTROL_PLANE, "kubelet"))
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubeletCluster]:
    with KubeletCluster("podstkk", 55) as running:
        running.populate()
        yield running


def test_kubelet_pods_are_isolated_by_project_and_follow_vnid_changes(cluster: KubeletCluster) -> None:
    runtimes = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}").split()
    assert len(set(runtimes)) == 2, "one of them is a kubelet of Kubernetes"
    matrix = cluster.matrix()
    assert len(matrix.members) == 6
    assert matrix.unexpected() == (), matrix.text()
    before = matrix.reached
    podlane_network(cluster.lab.kubeconfig, "join", "blue", "--to", "red")
    wait_until(lambda: cluster.matrix().unexpected() == (), "together")
    assert cluster.matrix().reached > before
