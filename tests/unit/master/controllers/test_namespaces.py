"""Deletion of namespaces."""

from __future__ import annotations

import datetime
from typing import Any

from msgspec.structs import replace

from api.core.config import ConfigMap
from api.core.events import Event
from api.core.node import Namespace, NamespaceSpec
from api.meta.types import Object
from master.controllers.actions import Update
from master.controllers.namespaces import reconcile
from master.registry.aggregated_apis import NO_CONTENTS, RemoteContents
from tests.unit.master.action_lines import NOW, lines
from tests.unit.master.examples import meta, namespace, pod

THEN = "2026-01-01T00:00:00Z"


def ending(*finalizers: str, holders: tuple[str, ...] = (), **rest: Any) -> Namespace:
    result = namespace("red", deletion_timestamp=THEN, finalizers=holders, **rest)
    return replace(result, spec=NamespaceSpec(finalizers=finalizers))


def config(name: str, *finalizers: str, project: str = "red", deleted: str | None = None) -> ConfigMap:
    return ConfigMap(metadata=meta(name, namespace=project, finalizers=finalizers, deletion_timestamp=deleted))


def actions(obj: Namespace, *contents: Object) -> list[str]:
    return lines(reconcile([obj, namespace("blue")], contents, NOW))


def test_terminating_namespace_deletes_its_pods_and_then_itself() -> None:
    assert actions(ending(), pod("a"), pod("c", namespace="blue")) == ["end Pod a"]
    assert actions(ending(), pod("b", deleted=THEN)) == ["~ Namespace red"], "it says what it waits for"
    assert actions(ending()) == ["- Namespace red"]


def test_terminating_namespace_deletes_other_objects_at_once() -> None:
    inside, outside = (
        Event(metadata=meta(name, namespace=project)) for name, project in (("in", "red"), ("out", "blue"))
    )
    assert actions(ending(), inside, outside) == ["- Event in", "- Namespace red"]


def test_terminating_namespace_keeps_other_objects_while_it_has_pods() -> None:
    assert actions(ending(), config("free"), pod("a"), config("held", "mine/x")) == ["end Pod a"]
    assert actions(ending(), config("free"), pod("a", deleted=THEN)) == ["~ Namespace red"]
    blue = pod("a", namespace="blue")
    assert actions(ending(), config("free"), blue) == ["- ConfigMap free", "- Namespace red"]


def test_terminating_namespace_waits_for_objects_with_finalizers() -> None:
    assert actions(ending(), config("held", "mine/x"), config("free")) == ["end ConfigMap held", "- ConfigMap free"]
    held = [config(name, "mine/x", deleted=THEN) for name in ("a", "b")]
    (change,) = reconcile([ending("kubernetes")], [*held, pod("p", deleted=THEN)], NOW)
    assert isinstance(change, Update)
    assert isinstance(change.object, Namespace)
    actual = {
        condition.type: (condition.status, condition.reason, condition.message)
        for condition in change.object.status.conditions
    }
    assert actual == {
        "NamespaceDeletionDiscoveryFailure": (
            "False", "ResourcesDiscovered", "All resources successfully discovered",
        ),
        "NamespaceDeletionGroupVersionParsingFailure": (
            "False", "ParsedGroupVersions", "All legacy kube types successfully parsed",
        ),
        "NamespaceDeletionContentFailure": (
            "False", "ContentDeleted", "All content successfully deleted, may be waiting on finalization",
        ),
        "NamespaceContentRemaining": (
            "True", "SomeResourcesRemain",
            "Some resources are remaining: configmaps. has 2 resource instances, pods. has 1 resource instances",
        ),
        "NamespaceFinalizersRemaining": (
            "True", "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: mine/x in 2 resource instances",
        ),
    }  # fmt: skip
    assert change.object.spec == ending("kubernetes").spec, "it is still held"
    later = NOW + datetime.timedelta(hours=1)
    assert not list(reconcile([change.object], [*held, pod("p", deleted=THEN)], later)), "that is told once"
    (second,) = reconcile([change.object], held, later)
    assert second.object.status.conditions[3].last_transition_time == "2026-01-01T12:00:00Z"  # type: ignore[attr-defined]


def test_namespace_controller_removes_only_its_own_finalizer() -> None:
    (change,) = reconcile([ending("kubernetes", holders=("mine",))], [], NOW)
    assert isinstance(change, Update)
    assert change.object == ending(holders=("mine",))
    assert actions(ending(holders=("mine",))) == []
    (change,) = reconcile([ending("kubernetes", "theirs")], [], NOW)
    assert change.object == ending("theirs")
    assert actions(ending("theirs")) == []
    assert actions(ending("kubernetes")) == ["- Namespace red"]


def conditions(remote: RemoteContents | None) -> dict[str, tuple[str, str, str]]:
    """Return the conditions of an empty namespace with contents on other servers; empty if it is not written."""
    changes = list(reconcile([ending("kubernetes")], (), NOW, lambda _: remote))
    if not changes:
        return {}
    (change,) = changes
    assert isinstance(change, Update), change
    assert isinstance(change.object, Namespace)
    return {each.type: (each.status, each.reason, each.message) for each in change.object.status.conditions}


def test_terminating_namespace_waits_for_what_other_servers_have() -> None:
    assert lines(reconcile([ending()], (), NOW, lambda _: NO_CONTENTS)) == ["- Namespace red"]
    assert conditions(None) == {}, "nothing is known yet"
    found = conditions(RemoteContents((("toys.example.org", 2),), (("mine/x", 1),)))
    assert found["NamespaceContentRemaining"][2] == (
        "Some resources are remaining: toys.example.org has 2 resource instances"
    )
    assert "mine/x in 1 resource instances" in found["NamespaceFinalizersRemaining"][2]
    stale = "toys.example.org/v1: stale GroupVersion discovery: toys.example.org/v1"
    assert conditions(RemoteContents(discovery_failures=(stale,)))["NamespaceDeletionDiscoveryFailure"] == (
        "True",
        "DiscoveryFailed",
        f"Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: {stale}",
    )
    assert conditions(RemoteContents(failures=("toys.example.org: refused",)))["NamespaceDeletionContentFailure"] == (
        "True",
        "ContentDeletionFailed",
        "Failed to delete all resource types, 1 remaining: toys.example.org: refused",
    )


def test_only_namespaces_that_end_are_looked_up_elsewhere() -> None:
    asked: list[str] = []

    def remote(project: Namespace) -> RemoteContents:
        asked.append(project.metadata.name)
        return NO_CONTENTS

    list(reconcile([ending(), namespace("blue")], (), NOW, remote))
    assert asked == ["red"]
