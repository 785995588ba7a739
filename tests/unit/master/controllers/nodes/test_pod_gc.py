"""Garbage collection of pods."""

from __future__ import annotations

from msgspec.structs import replace

from api.core.pod import Pod
from master.controllers.actions import Update
from master.controllers.nodes.pod_gc import missing_nodes, orphaned_pods, terminated_pods
from master.resources.metadata import with_metadata
from tests.unit.master.action_lines import NOW, lines
from tests.unit.master.examples import node, pod


def test_pods_of_a_deleted_node_are_removed_after_a_grace_period() -> None:
    pods = [
        pod("ran", node="gone", host_ip="10.245.2.9"),
        pod("ending", node="gone", deleted="2026-01-01T00:00:00Z"),
        pod("waiting", node="gone"),
        pod("fine", node="here", host_ip="10.245.2.3"),
        pod("free"),
    ]
    absent = missing_nodes({}, [node("here")], pods, monotonic=10.0)
    assert absent == {"gone": 10.0}
    assert missing_nodes(absent, [node("here")], pods, monotonic=60.0) == {"gone": 10.0}
    assert lines(orphaned_pods(pods, absent, 40, 49.0, NOW)) == []
    assert lines(orphaned_pods(pods, absent, 40, 50.0, NOW)) == ["- Pod ran", "- Pod ending"]
    assert missing_nodes(absent, [node("here"), node("gone")], pods, monotonic=70.0) == {}


def test_pod_with_tracking_finalizer_fails_before_removal() -> None:
    lost = with_metadata(pod("p", node="gone", phase="Running", host_ip="10.245.2.3"), finalizers=("counted",))
    (change,) = orphaned_pods([lost], {"gone": 0.0}, 40, 50.0, NOW)
    assert isinstance(change, Update)
    failed = change.object
    assert isinstance(failed, Pod)
    assert failed.status.phase == "Failed"
    condition = failed.status.conditions[-1]
    assert (condition.type, condition.reason, condition.message) == (
        "DisruptionTarget", "DeletionByPodGC", "PodGC: node no longer exists",
    )  # fmt: skip
    assert lines(orphaned_pods([failed], {"gone": 0.0}, 40, 50.0, NOW)) == ["end Pod p"]
    leaving = with_metadata(failed, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=0)
    assert lines(orphaned_pods([leaving], {"gone": 0.0}, 40, 50.0, NOW)) == []


def test_terminated_pods_are_removed_evicted_first_then_oldest() -> None:
    ended = [pod(name, phase="Failed", created=f"2026-01-01T00:00:0{n}Z") for n, name in enumerate("abcd")]
    evicted = replace(ended[3], status=replace(ended[3].status, reason="Evicted"))
    pods = [*ended[:3], evicted, pod("runs", phase="Running"), pod("waits"), pod("e", phase="Succeeded", deleted="x")]
    assert lines(terminated_pods(pods, 4)) == []
    assert lines(terminated_pods(pods, 3)) == ["end Pod d"]
    assert lines(terminated_pods(pods, 1)) == ["end Pod d", "end Pod a", "end Pod b"]
