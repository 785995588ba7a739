"""Orphans: pods of which only labels are known."""

from __future__ import annotations

import pytest

from api.validation.static_pods import is_static
from node_agent.pods.local_pods import orphan_pod
from node_agent.runtime.container import CONTAINER_TYPE, GRACE, POD_NAME, POD_NAMESPACE, SANDBOX_TYPE, TYPE
from node_agent.runtime.termination import grace_period_seconds

SOURCE = "annotation.kubernetes.io/config.source"


@pytest.mark.parametrize(
    ("labels", "static", "seconds"),
    [
        ({SOURCE: "file", GRACE: "600", TYPE: SANDBOX_TYPE}, True, 600),
        ({SOURCE: "http", GRACE: "1", TYPE: SANDBOX_TYPE}, True, 1),
        ({SOURCE: "file", GRACE: "600", TYPE: CONTAINER_TYPE}, False, 2),
        ({SOURCE: "api", GRACE: "600"}, False, 2),
        ({SOURCE: "api", GRACE: "1"}, False, 1),
        ({GRACE: "600"}, False, 2),
        ({}, False, 2),
    ],
)
def test_only_a_static_orphan_has_more_than_two_seconds(labels: dict[str, str], static: bool, seconds: int) -> None:
    pod = orphan_pod("u1", {POD_NAME: "web", POD_NAMESPACE: "red", **labels})
    assert (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid) == ("red", "web", "u1")
    assert is_static(pod) == static
    assert grace_period_seconds(pod, None, removed=True) == seconds
