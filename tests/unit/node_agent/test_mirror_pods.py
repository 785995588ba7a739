"""Which mirror pods are made and dropped."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from api.objects import Node, ObjectMeta, Pod
from api.static_pods import CONFIG_MIRROR, mirror_pod
from node_agent.mirror_pods import Drop, Make, Shown, plan
from node_agent.sources.reading import Origin, read

MANIFEST = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: m, image: i}]}}"
[STATIC] = read(MANIFEST, Origin("n1", "file", "/a"), (), datetime(2026, 1, 1, tzinfo=UTC)).pods
UID = STATIC.metadata.uid
NODE = Node(metadata=ObjectMeta(name="n1", uid="u1"))
MIRROR = mirror_pod(STATIC, NODE)
GOING = replace(MIRROR, metadata=replace(MIRROR.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
EARLIER = replace(MIRROR, metadata=replace(MIRROR.metadata, annotations={CONFIG_MIRROR: "other"}))
OTHER_NODE = mirror_pod(STATIC, Node(metadata=ObjectMeta(name="n1", uid="u0")))
USERS = replace(MIRROR, metadata=replace(MIRROR.metadata, annotations={}))
RUNS, WAITS, GONE = (
    Shown({UID: STATIC}, frozenset(), True),
    Shown({}, frozenset({UID}), True),
    Shown({}, frozenset(), True),
)
STARTING = Shown({}, frozenset(), False)


@pytest.mark.parametrize(
    ("here", "held", "steps"),
    [
        (RUNS, [], [Make(MIRROR)]),
        (RUNS, [MIRROR], []),
        (RUNS, [GOING], [Drop(GOING)]),
        (RUNS, [EARLIER], [Drop(EARLIER)]),
        (RUNS, [OTHER_NODE], [Drop(OTHER_NODE)]),
        (RUNS, [USERS], []),
        (WAITS, [MIRROR], []),
        (WAITS, [], []),
        (WAITS, [GOING], [Drop(GOING)]),
        (GONE, [MIRROR], [Drop(MIRROR)]),
        (GONE, [USERS], []),
        (STARTING, [MIRROR], []),
    ],
)
def test_the_master_shows_what_runs_and_nothing_else(here: Shown, held: list[Pod], steps: list[Make | Drop]) -> None:
    assert list(plan(here, held, NODE)) == steps
