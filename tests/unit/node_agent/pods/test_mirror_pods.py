"""The mirror pods that are created and deleted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from api.validation.static_pods import CONFIG_MIRROR, mirror_pod
from node_agent.pods.manager import StaticPods
from node_agent.pods.mirror_pods import CreateMirror, DeleteMirror, plan_mirror_pods
from node_agent.sources.static_pods import ManifestOrigin, parse_manifest

MANIFEST = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: m, image: i}]}}"
[STATIC] = parse_manifest(MANIFEST, ManifestOrigin("n1", "file", "/a"), (), datetime(2026, 1, 1, tzinfo=UTC)).pods
UID = STATIC.metadata.uid
NODE = Node(metadata=ObjectMeta(name="n1", uid="u1"))
MIRROR = mirror_pod(STATIC, NODE)
GOING = replace(MIRROR, metadata=replace(MIRROR.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
EARLIER = replace(MIRROR, metadata=replace(MIRROR.metadata, annotations={CONFIG_MIRROR: "other"}))
OTHER_NODE = mirror_pod(STATIC, Node(metadata=ObjectMeta(name="n1", uid="u0")))
USERS = replace(MIRROR, metadata=replace(MIRROR.metadata, annotations={}))
RUNS, WAITS, GONE = (
    StaticPods({UID: STATIC}, frozenset(), True),
    StaticPods({}, frozenset({UID}), True),
    StaticPods({}, frozenset(), True),
)
STARTING = StaticPods({}, frozenset(), False)


@pytest.mark.parametrize(
    ("static_pods", "api_pods", "steps"),
    [
        (RUNS, [], [CreateMirror(MIRROR)]),
        (RUNS, [MIRROR], []),
        (RUNS, [GOING], [DeleteMirror(GOING)]),
        (RUNS, [EARLIER], [DeleteMirror(EARLIER)]),
        (RUNS, [OTHER_NODE], [DeleteMirror(OTHER_NODE)]),
        (RUNS, [USERS], []),
        (WAITS, [MIRROR], []),
        (WAITS, [], []),
        (WAITS, [GOING], [DeleteMirror(GOING)]),
        (GONE, [MIRROR], [DeleteMirror(MIRROR)]),
        (GONE, [USERS], []),
        (STARTING, [MIRROR], []),
    ],
)
def test_mirror_pods_equal_running_static_pods(
    static_pods: StaticPods, api_pods: list[Pod], steps: list[CreateMirror | DeleteMirror]
) -> None:
    assert list(plan_mirror_pods(static_pods, api_pods, NODE)) == steps
