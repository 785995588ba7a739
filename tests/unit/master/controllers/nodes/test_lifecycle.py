"""Nodes that no longer report."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.node import Lease, LeaseSpec, Node
from api.meta.types import OwnerReference
from master.controllers.nodes import lifecycle
from tests.unit.master.action_lines import NOW, lines
from tests.unit.master.examples import meta, node

# --- nodes ------------------------------------------------------------------------------------------------------------


def test_unresponsive_node_becomes_unknown_after_its_grace_period_once() -> None:
    quiet, lively = node("quiet"), node("lively")
    seen = lifecycle.update_heartbeats({}, [quiet, lively], [], monotonic=100.0)
    lively = node("lively", heartbeat="2026-01-01T00:00:10Z")
    seen = lifecycle.update_heartbeats(seen, [quiet, lively], [], monotonic=130.0)
    assert list(lifecycle.expired_nodes([quiet, lively], seen, 40, 139.0, NOW)) == []
    (change,) = lifecycle.expired_nodes([quiet, lively], seen, 40, 140.0, NOW)
    lost = change.object
    assert isinstance(lost, Node)
    condition = lost.status.conditions[0]
    assert lost.metadata.name == "quiet"
    assert (condition.status, condition.reason, condition.last_transition_time) == (
        "Unknown",
        "NodeStatusUnknown",
        "2026-01-01T12:00:00Z",
    )
    assert condition.last_heartbeat_time == "2026-01-01T00:00:00Z"
    assert list(lifecycle.expired_nodes([lost], seen, 40, 500.0, NOW)) == []
    # Our own writing is not a sign of life of the node.
    assert lifecycle.update_heartbeats(seen, [lost], [], monotonic=500.0) == {
        ("quiet", "uid-quiet"): seen[("quiet", "uid-quiet")]
    }


def test_master_start_gives_every_node_a_full_grace_period() -> None:
    stale = node("a", heartbeat="2020-01-01T00:00:00Z")
    seen = lifecycle.update_heartbeats({}, [stale], [], monotonic=1000.0)
    assert list(lifecycle.expired_nodes([stale], seen, 40, 1039.0, NOW)) == []
    assert len(list(lifecycle.expired_nodes([stale], seen, 40, 1040.0, NOW))) == 1


def leased(name: str, renewed: str, owner: str = "", namespace: str = "kube-node-lease") -> Lease:
    owners = (OwnerReference(api_version="v1", kind="Node", name=name, uid=owner),) if owner else ()
    return Lease(metadata=meta(name, namespace=namespace, owner_references=owners), spec=LeaseSpec(renew_time=renewed))


def test_renewed_lease_keeps_a_node_ready_without_status_updates() -> None:
    nodes = [node("a"), node("b")]
    seen = lifecycle.update_heartbeats({}, nodes, [leased("a", "1"), leased("b", "1")], monotonic=0.0)
    elsewhere = leased("b", "2", namespace="red")
    seen = lifecycle.update_heartbeats(seen, nodes, [leased("a", "2"), leased("b", "1"), elsewhere], monotonic=30.0)
    assert [change.object.metadata.name for change in lifecycle.expired_nodes(nodes, seen, 40, 50.0, NOW)] == ["b"]


def test_lease_is_deleted_with_its_node() -> None:
    leases = [
        leased("a", "1", owner="uid-a"),
        leased("gone", "1", owner="uid-gone"),
        leased("fresh", "1"),
        leased("other", "1", owner="uid-gone", namespace="red"),
    ]
    assert lines(lifecycle.orphaned_leases([node("a")], leases)) == ["- Lease gone"]


def test_node_that_never_reported_becomes_unknown() -> None:
    mute = replace(node("a"), status=type(node("a").status)())
    seen = lifecycle.update_heartbeats({}, [mute], [], monotonic=0.0)
    (change,) = lifecycle.expired_nodes([mute], seen, 40, 40.0, NOW)
    assert [condition.type for condition in change.object.status.conditions] == ["Ready"]  # type: ignore[attr-defined]
