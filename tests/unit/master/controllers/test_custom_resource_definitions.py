"""Names of custom kinds, their establishment, and the deletion of their objects."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from api.core.config import ConfigMap
from api.meta.types import Object, ObjectMeta
from master.apiextensions.definitions import (
    CLEANUP_FINALIZER,
    DEFINITIONS,
    Definition,
    DefinitionStatus,
    read_definition,
    version_order,
)
from master.controllers.custom_resource_definitions import Decision, accepted_names, concerns_definitions, decide
from master.resources.group_resource import GroupResource
from master.storage.interface import Key, Record, WatchEvent

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(hours=1)


def definition(
    plural: str, group: str = "example.com", created: str = "2026-01-01T00:00:00Z", **names: Any
) -> Definition:
    """Return a new definition."""
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "kind": plural.capitalize(), **names},
        "versions": [{"name": "v1", "served": True, "storage": True}],
    }
    metadata = {"name": f"{plural}.{group}", "uid": plural, "creationTimestamp": created}
    return read_definition(msgspec.json.encode({"metadata": metadata, "spec": spec}))


def decisions(*definitions: Definition, now: datetime.datetime = NOW, **more: Any) -> dict[str, Decision]:
    """Return the decisions about definitions, by plural name."""
    terminating, objects = more.get("terminating", frozenset()), more.get("objects", {})
    found = decide(definitions, terminating, lambda resource: objects.get(resource, ()), now)
    return {decision.definition.spec.names.plural: decision for decision in found}


def with_status(given: Definition, status: DefinitionStatus) -> Definition:
    """Return a definition with a status."""
    return msgspec.structs.replace(given, status=status)


def established(plural: str, **more: Any) -> Definition:
    """Return a definition whose kind is served."""
    given = definition(plural, **more)
    return with_status(given, decisions(given)[plural].status)


def reasons(decision: Decision) -> list[tuple[str, str, str]]:
    """Return type, status and reason of each condition."""
    return [(each.type, each.status, each.reason) for each in decision.status.conditions]


def deleted(given: Definition, *finalizers: str) -> Definition:
    """Return a definition that is being deleted."""
    metadata = msgspec.structs.replace(
        given.metadata, deletion_timestamp="2026-01-01T00:00:00Z", finalizers=finalizers or (CLEANUP_FINALIZER,)
    )
    return msgspec.structs.replace(given, metadata=metadata)


def test_a_new_kind_is_accepted_and_established_in_one_write() -> None:
    decision = decisions(definition("lamps", shortNames=["lp"]))["lamps"]
    assert decision.becomes_established
    assert reasons(decision) == [
        ("NamesAccepted", "True", "NoConflicts"),
        ("Established", "True", "InitialNamesAccepted"),
    ]
    names = decision.status.accepted_names
    assert names is not None
    assert (names.singular, names.list_kind, names.short_names) == ("lamps", "LampsList", ("lp",))


def test_an_established_kind_is_not_written_again() -> None:
    assert decisions(established("lamps"), now=LATER) == {}


def test_of_two_kinds_with_one_name_the_first_gets_it() -> None:
    older = definition("lamps", shortNames=["l"])
    newer = definition("lights", kind="Lamps", singular="light", shortNames=["l"], created="2026-01-02T00:00:00Z")
    found = decisions(newer, older)
    assert found["lamps"].becomes_established
    assert reasons(found["lights"]) == [
        ("NamesAccepted", "False", "ShortNamesConflict"),
        ("Established", "False", "NotAccepted"),
    ]
    refused = with_status(newer, found["lights"].status)
    assert decisions(refused, now=LATER)["lights"].becomes_established, "when the other definition is gone"
    elsewhere = definition("lights", "example.org", kind="Lamps", singular="light", shortNames=["l"])
    assert decisions(older, elsewhere)["lights"].becomes_established, "names of another group are no conflict"


def test_an_established_kind_keeps_its_names_after_a_conflict() -> None:
    lamps, lights = established("lamps"), established("lights")
    renamed = msgspec.structs.replace(
        lights,
        spec=msgspec.structs.replace(lights.spec, names=msgspec.structs.replace(lights.spec.names, singular="lamps")),
    )
    decision = decisions(lamps, renamed)["lights"]
    assert decision.definition.is_established
    assert reasons(decision)[0] == ("NamesAccepted", "False", "SingularConflict")
    assert decision.status.accepted_names is not None
    assert decision.status.accepted_names.singular == "lights"


def test_a_built_in_resource_is_no_name_of_a_custom_kind() -> None:
    names, conflict = accepted_names(definition("deployments", "apps"), ())
    assert conflict == ("PluralConflict", '"deployments" is already in use')
    assert names.plural == ""
    assert accepted_names(definition("deployments", "example.com"), ())[1] is None


def test_a_definition_goes_after_its_objects() -> None:
    key = GroupResource("example.com", "lamps")
    going = deleted(established("lamps"))
    free, held = (ConfigMap(metadata=ObjectMeta(name=name)) for name in ("free", "held"))
    marked = ConfigMap(metadata=ObjectMeta(name="held", deletion_timestamp="2026-01-01T00:00:00Z"))
    first = decisions(going, objects={key: (free, held)}, terminating={key})["lamps"]
    assert list(first.deleted) == [free, held]
    assert reasons(first)[-1] == ("Terminating", "True", "InstanceDeletionInProgress")
    assert not first.is_finished
    waiting = with_status(going, first.status)
    assert decisions(waiting, objects={key: (marked,)}, terminating={key}) == {}
    assert not decisions(waiting)["lamps"].is_finished, "an object may still be created"
    assert decisions(waiting, terminating={key})["lamps"].is_finished


def test_a_definition_that_was_never_established_goes_at_once() -> None:
    assert decisions(deleted(definition("lamps")))["lamps"].is_finished
    assert decisions(deleted(definition("lamps"), "example.com/other")) == {}


def test_only_deletions_of_objects_concern_definitions() -> None:
    def event(type_: str, resource: GroupResource) -> WatchEvent:
        return WatchEvent(type_, Record(Key(resource, "", "x"), 1, b"{}", Object), None)

    lamps = GroupResource("example.com", "lamps")
    assert concerns_definitions(event("ADDED", DEFINITIONS))
    assert concerns_definitions(event("DELETED", lamps))
    assert not concerns_definitions(event("ADDED", lamps))


def test_order_of_versions() -> None:
    names = ["foo1", "v1alpha1", "v10", "v1", "v2beta1", "v11beta2", "v2", "foo10", "v1beta2", "v1beta10"]
    assert sorted(names, key=version_order) == [
        "v10", "v2", "v1", "v11beta2", "v2beta1", "v1beta10", "v1beta2", "v1alpha1", "foo1", "foo10",
    ]  # fmt: skip
