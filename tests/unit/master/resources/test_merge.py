"""The merge of apply configurations, and what they must not name."""

from __future__ import annotations

from typing import Any

import pytest

from master.resources.merge import atomic_parts, key_errors, merge
from master.resources.scheme import BY_KIND

SHAPE = BY_KIND["Deployment"].merge_schema


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def test_items_are_merged_by_key_and_others_are_appended() -> None:
    live = pod(containers=[{"name": "a", "image": "1", "ports": [{"containerPort": 80, "protocol": "TCP"}]}])
    applied = pod(
        containers=[{"name": "a", "ports": [{"containerPort": 80, "name": "web"}]}, {"name": "b", "image": "2"}]
    )
    assert merge(live, applied, SHAPE) == pod(
        containers=[
            {"name": "a", "image": "1", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]},
            {"name": "b", "image": "2"},
        ]
    )


@pytest.mark.parametrize(
    ("applied", "paths"),
    [
        ({"spec": {"replicas": 1}, "metadata": {"labels": {"a": "b"}, "finalizers": ["x/y"]}}, []),
        (pod(containers=[{"name": "a", "env": [{"name": "b", "value": "c"}]}], volumes=[{"name": "v"}]), []),
        ({"spec": {"selector": {"matchLabels": {"a": "b"}}}}, [".spec.selector"]),
        (pod(nodeSelector={"a": "b"}), [".spec.template.spec.nodeSelector"]),
        (pod(tolerations=[{"key": "a"}]), [".spec.template.spec.tolerations"]),
        (
            pod(containers=[{"name": "a", "command": ["b"], "args": []}]),
            [".spec.template.spec.containers[0].command", ".spec.template.spec.containers[0].args"],
        ),
        (
            pod(containers=[{"name": "a", "env": [{"name": "b", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}]),
            [".spec.template.spec.containers[0].env[0].valueFrom.secretKeyRef"],
        ),
    ],
)
def test_atomic_parts_are_found(applied: dict[str, Any], paths: list[str]) -> None:
    assert list(atomic_parts(applied, SHAPE)) == paths


def test_items_without_a_key_and_with_that_of_another_are_errors() -> None:
    ports = [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}, {"containerPort": 1, "protocol": "UDP"}]
    applied = pod(containers=[{"image": "a"}, {"name": "b", "ports": ports}])
    assert list(key_errors(applied, SHAPE)) == [
        ".spec.template.spec.containers: element 0: associative list with keys has an element that omits key field "
        '"name" (and doesn\'t have default value)',
        '.spec.template.spec.containers[1].ports: duplicate entries for key {"containerPort":1,"protocol":"TCP"}',
    ]
    assert list(key_errors(pod(containers=[{"name": "b"}]), SHAPE)) == []
