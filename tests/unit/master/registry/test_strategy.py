"""Decoding and validation of request bodies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from api.core.node import Node
from api.core.pod import Container, EphemeralContainer, Pod, PodSpec
from api.meta.schema import TOO_MANY
from api.meta.types import ObjectMeta
from api.validation.pod_limits import MAX_CONTAINERS
from api.validation.services import MAX_ADDRESSES, MAX_PORTS, MAX_SELECTOR_LABELS
from master.admission.chain import AdmissionChain
from master.admission.plugin import AdmissionPlugin, AdmissionRequest
from master.errors import StatusError
from master.registry.creation import ObjectCreation
from master.registry.decoding import decode_object
from master.registry.request import DeleteOptions
from master.registry.strategy import (
    FOREGROUND,
    ORPHAN,
    prepare_create,
    prepare_delete,
    prepare_subresource_update,
    prepare_update,
    validate,
)
from master.request_info import RequestInfo
from master.resources.jobs import Job
from master.resources.network_policies import MAX_PEERS, MAX_POLICY_PORTS, MAX_POLICY_RULES
from master.resources.pods import EPHEMERAL_CONTAINERS
from master.resources.rbac import MAX_SUBJECTS
from master.resources.scheme import BY_KIND
from master.resources.stateful_sets import MAX_CLAIM_TEMPLATES
from master.server.routes import resolve_path
from master.storage.interface import Storage, Transaction
from tests.unit.master.examples import meta

GOOD: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
TWO_UNKNOWN = {**GOOD, "spec": {"contaners": [], "comand": "x", **GOOD["spec"]}}
TWO_WRONG = {**TWO_UNKNOWN, "spec": {**TWO_UNKNOWN["spec"], "nodeName": 7, "volumes": {"a": "b"}}}


def refusal(document: dict[str, Any], strictness: str) -> str:
    where = resolve_path("/api/v1/namespaces/red/pods")
    assert where is not None
    with pytest.raises(StatusError) as caught:
        decode_object(where, document, strictness)
    return str(caught.value.status.message)


def warnings(document: dict[str, Any], strictness: str) -> tuple[str, ...]:
    where = resolve_path("/api/v1/namespaces/red/pods")
    assert where is not None
    return decode_object(where, document, strictness).warnings


def without_defaults(info: RequestInfo) -> RequestInfo:
    """Return the info with a resource whose defaults fail the test."""
    rules = dataclasses.replace(info.resource.rules, default=lambda _: pytest.fail("defaults were set"))
    return dataclasses.replace(info, resource=dataclasses.replace(info.resource, rules=rules))


CROWDED = {"spec": {"containers": [{"name": "a", "image": "b"}] * (MAX_CONTAINERS + 1)}}


@pytest.mark.parametrize(
    ("path", "field", "document"),
    [
        ("/api/v1/namespaces/red/pods", "spec", CROWDED),
        ("/api/v1/namespaces/red/podtemplates", "template.spec", {"template": CROWDED}),
        ("/apis/apps/v1/namespaces/red/deployments", "spec.template.spec", {"spec": {"template": CROWDED}}),
        ("/apis/batch/v1/namespaces/red/jobs", "spec.template.spec", {"spec": {"template": CROWDED}}),
        (
            "/apis/batch/v1/namespaces/red/cronjobs",
            "spec.jobTemplate.spec.template.spec",
            {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": CROWDED}}}},
        ),
    ],
)
def test_pod_or_template_with_too_many_containers_is_rejected_before_defaults(
    path: str, field: str, document: dict[str, Any]
) -> None:
    where = resolve_path(path)
    assert where is not None
    info = without_defaults(where)
    with pytest.raises(StatusError) as caught:
        decode_object(info, {"metadata": {"name": "a"}, **document}, "Strict")
    details = caught.value.status.details
    assert details is not None
    assert [(cause.field, cause.reason) for cause in details.causes] == [(f"{field}.containers", TOO_MANY)]


BLOCK = {"cidr": "10.0.0.0/8"}
PEER = {"ipBlock": BLOCK}
SERVICES, POLICIES = "/api/v1/namespaces/red/services", "/apis/networking.k8s.io/v1/namespaces/red/networkpolicies"
RBAC, LEGACY = "/apis/rbac.authorization.k8s.io/v1", "/apis/authorization.openshift.io/v1"
USER = {"kind": "User", "name": "u"}


def policy(number: int, **rules: Any) -> dict[str, Any]:
    """Return a policy with a number of each item of the rule."""
    ((direction, rule),) = rules.items()
    return {"spec": {"podSelector": {}, direction: [{key: [item] * number for key, item in rule.items()}]}}


@pytest.mark.parametrize(
    ("path", "field", "limit", "document"),
    [
        (SERVICES, "spec.ports", MAX_PORTS, lambda number: {"spec": {"ports": [{"port": 1}] * number}}),
        (SERVICES, "spec.externalIPs", MAX_ADDRESSES, lambda number: {"spec": {"externalIPs": ["1.2.3.4"] * number}}),
        (
            SERVICES,
            "spec.loadBalancerSourceRanges",
            MAX_ADDRESSES,
            lambda number: {"spec": {"loadBalancerSourceRanges": ["1.2.3.4/32"] * number}},
        ),
        (
            SERVICES,
            "spec.selector",
            MAX_SELECTOR_LABELS,
            lambda number: {"spec": {"selector": dict.fromkeys(map(str, range(number)), "")}},
        ),
        (f"{RBAC}/namespaces/red/rolebindings", "subjects", MAX_SUBJECTS, lambda number: {"subjects": [USER] * number}),
        (f"{RBAC}/clusterrolebindings", "subjects", MAX_SUBJECTS, lambda number: {"subjects": [USER] * number}),
        (
            f"{LEGACY}/namespaces/red/rolebindings",
            "subjects",
            MAX_SUBJECTS,
            lambda number: {"subjects": [USER] * number},
        ),
        (
            f"{LEGACY}/clusterrolebindings",
            "userNames",
            MAX_SUBJECTS,
            lambda number: {"userNames": ["u"] * (number - 1), "groupNames": ["g"]},
        ),
        (
            "/apis/apps/v1/namespaces/red/statefulsets",
            "spec.volumeClaimTemplates",
            MAX_CLAIM_TEMPLATES,
            lambda number: {"spec": {"volumeClaimTemplates": [{"metadata": {"name": "c"}}] * number}},
        ),
        (POLICIES, "spec", MAX_POLICY_RULES, lambda number: {"spec": {"ingress": [{}] * (number - 1), "egress": [{}]}}),
        (POLICIES, "spec", MAX_PEERS, lambda number: policy(number, ingress={"from": PEER})),
        (POLICIES, "spec", MAX_PEERS, lambda number: policy(number, egress={"to": PEER})),
        (
            POLICIES,
            "spec",
            MAX_PEERS,
            lambda number: policy(1, egress={"to": {"ipBlock": {**BLOCK, "except": ["10.0.0.0/9"] * (number - 1)}}}),
        ),
        (POLICIES, "spec", MAX_POLICY_PORTS, lambda number: policy(number, egress={"ports": {"port": 1}})),
    ],
)
def test_object_with_too_many_items_is_rejected_before_defaults(
    path: str, field: str, limit: int, document: Callable[[int], dict[str, Any]]
) -> None:
    where = resolve_path(path)
    assert where is not None
    head = {"metadata": {"name": "a"}}
    decode_object(where, {**head, **document(limit)}, "Strict")
    info = without_defaults(where)
    with pytest.raises(StatusError) as caught:
        decode_object(info, {**head, **document(limit + 1)}, "Strict")
    details = caught.value.status.details
    assert details is not None
    assert [(cause.field, cause.reason) for cause in details.causes] == [(field, TOO_MANY)]
    assert f"at most {limit} " in details.causes[0].message


def test_controllers_create_no_pods_with_too_many_containers() -> None:
    crowded = msgspec.convert({"metadata": {"name": "a"}, **CROWDED}, Pod)
    creation = ObjectCreation(AdmissionChain((Unreachable(),)), lambda: datetime.now(UTC), "")
    with pytest.raises(StatusError, match="Too many"):
        creation.create(BY_KIND["Pod"], crowded, Transaction(cast("Storage", None)))


class Unreachable(AdmissionPlugin):
    """A plugin that fails the test when it is called."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        pytest.fail("the pod reached admission")


def test_unknown_fields_are_rejected_warned_of_or_ignored_by_strictness() -> None:
    assert refusal(TWO_UNKNOWN, "Strict").endswith('unknown field "spec.contaners", unknown field "spec.comand"')
    assert len(warnings(TWO_UNKNOWN, "Warn")) == 2
    assert warnings(TWO_UNKNOWN, "Ignore") == ()


def test_at_most_100_unknown_fields_are_reported() -> None:
    document = {"metadata": {"name": "a"}, **{f"field{number}": 1 for number in range(1_000)}}
    assert refusal(document, "Strict").count("unknown field") == 100


@pytest.mark.parametrize("strictness", ["Warn", "Ignore"])
def test_invalid_fields_are_rejected_by_path_at_every_strictness(strictness: str) -> None:
    words = refusal(TWO_WRONG, strictness)
    assert "spec.nodeName" in words
    assert "spec.volumes" in words
    assert (words.count("Invalid value"), words.count("unknown field")) == (2, 0)


@pytest.mark.parametrize("document", [TWO_WRONG, {**TWO_UNKNOWN, "metadata": {"name": "Bad_Name"}}], ids=str)
def test_strict_request_reports_unknown_fields_first(document: dict[str, Any]) -> None:
    assert refusal(document, "Strict") == refusal(TWO_UNKNOWN, "Strict")


@pytest.mark.parametrize("strictness", ["Strict", "Warn", "Ignore"])
def test_values_unreadable_by_typed_clients_are_rejected_at_every_strictness(strictness: str) -> None:
    assert "status.startTime" in refusal({**GOOD, "status": {"startTime": "garbage"}}, strictness)


POD = Pod(metadata=ObjectMeta(name="web", generation=1), spec=PodSpec(containers=(Container(name="main", image="a"),)))
SHELL = EphemeralContainer(name="shell", image="b")


def extended(*extras: EphemeralContainer, **other: Any) -> Pod:
    return replace(POD, spec=replace(POD.spec, ephemeral_containers=extras, **other))


def test_ephemeral_containers_subresource_changes_nothing_else() -> None:
    where = resolve_path("/api/v1/namespaces/red/pods/web/ephemeralcontainers")
    assert where is not None
    new = prepare_subresource_update(where.resource, EPHEMERAL_CONTAINERS, extended(SHELL, host_network=True), POD)
    assert new.spec == extended(SHELL).spec
    assert new.metadata.generation == 2
    for changed in ((), (replace(SHELL, image="c"),)):
        with pytest.raises(StatusError) as caught:
            prepare_subresource_update(where.resource, EPHEMERAL_CONTAINERS, extended(*changed), extended(SHELL))
        assert "may not be changed or removed" in str(caught.value.status.message)


def test_ephemeral_containers_are_rejected_in_create_and_update() -> None:
    where = resolve_path("/api/v1/namespaces/red/pods")
    assert where is not None
    with pytest.raises(StatusError) as caught:
        prepare_create(where.resource, extended(SHELL), "uid", datetime(2026, 1, 1, tzinfo=UTC))
    assert "spec.ephemeralContainers" in str(caught.value.status.message)
    with pytest.raises(StatusError):
        prepare_update(where.resource, extended(SHELL), POD)


@pytest.mark.parametrize(
    ("kind", "options", "finalizer"),
    [
        ("ReplicaSet", {}, None),
        ("ReplicaSet", {"orphan_dependents": True}, ORPHAN),
        ("ReplicaSet", {"orphan_dependents": False}, None),
        ("ReplicaSet", {"propagation_policy": "Foreground"}, FOREGROUND),
        ("ReplicaSet", {"propagation_policy": "Orphan"}, ORPHAN),
        ("ReplicationController", {}, ORPHAN),
        ("ReplicationController", {"orphan_dependents": False}, None),
        ("ReplicationController", {"propagation_policy": "Background"}, None),
        ("Job", {}, ORPHAN),
        ("Job", {"propagation_policy": "Foreground"}, FOREGROUND),
    ],
)
def test_delete_propagation_policy_decides_about_dependents(
    kind: str, options: dict[str, Any], finalizer: str | None
) -> None:
    obj = BY_KIND[kind].type(metadata=meta("a"))
    left = prepare_delete(BY_KIND[kind], obj, DeleteOptions(**options), datetime(2026, 1, 1, tzinfo=UTC))
    assert (None if left is None else left.metadata.finalizers) == (None if finalizer is None else (finalizer,))


@pytest.mark.parametrize(
    ("kind", "before", "options", "after"),
    [
        ("ReplicaSet", (ORPHAN,), {"propagation_policy": "Foreground"}, ("a.io/b", FOREGROUND)),
        ("ReplicaSet", (FOREGROUND,), {"propagation_policy": "Orphan"}, ("a.io/b", ORPHAN)),
        ("ReplicaSet", (FOREGROUND,), {"propagation_policy": "Foreground"}, ("a.io/b", FOREGROUND)),
        ("ReplicaSet", (ORPHAN,), {"propagation_policy": "Background"}, ("a.io/b",)),
        ("ReplicaSet", (ORPHAN, FOREGROUND), {"orphan_dependents": False}, ("a.io/b",)),
        ("ReplicaSet", (FOREGROUND,), {"orphan_dependents": True}, ("a.io/b", ORPHAN)),
        ("ReplicaSet", (ORPHAN,), {}, ("a.io/b", ORPHAN)),
        ("ReplicaSet", (FOREGROUND, ORPHAN), {}, ("a.io/b", FOREGROUND)),
        ("Job", (FOREGROUND,), {}, ("a.io/b", FOREGROUND)),
        ("Job", (), {}, ("a.io/b", ORPHAN)),
    ],
)
@pytest.mark.parametrize("deleted", [None, "2026-01-01T00:00:00Z"])
def test_explicit_propagation_policy_replaces_the_finalizer_of_an_earlier_one(
    kind: str, before: tuple[str, ...], options: dict[str, Any], after: tuple[str, ...], deleted: str | None
) -> None:
    """Without a policy the finalizers of the object decide, and only then the default of its kind."""
    obj = BY_KIND[kind].type(metadata=meta("a", finalizers=("a.io/b", *before), deletion_timestamp=deleted))
    left = prepare_delete(BY_KIND[kind], obj, DeleteOptions(**options), datetime(2026, 1, 2, tzinfo=UTC))
    assert left is not None
    assert set(left.metadata.finalizers) == set(after)


@pytest.mark.parametrize(
    ("requested", "own", "seconds"), [(-1, 30, 1), (-30, 30, 1), (None, -5, 1), (2, 30, 2), (0, 30, None)]
)
def test_negative_grace_period_is_one_second(requested: int | None, own: int, seconds: int | None) -> None:
    pod = replace(POD, spec=replace(POD.spec, node_name="n1", termination_grace_period_seconds=own))
    options, now = DeleteOptions(grace_period_seconds=requested), datetime(2026, 1, 1, tzinfo=UTC)
    left = prepare_delete(BY_KIND["Pod"], pod, options, now, Node(metadata=ObjectMeta(name="n1")))
    assert (None if left is None else left.metadata.deletion_grace_period_seconds) == seconds


def test_unknown_propagation_policy_is_rejected() -> None:
    with pytest.raises(StatusError) as caught:
        prepare_delete(
            BY_KIND["Job"], Job(), DeleteOptions(propagation_policy="Gone"), datetime(2026, 1, 1, tzinfo=UTC)
        )
    assert "Background, Foreground, Orphan are accepted" in str(caught.value.status.message)


@pytest.mark.parametrize(("kind", "changes"), [("Ingress", True), ("Service", True), ("Pod", False), ("Node", False)])
def test_status_update_may_change_labels_except_by_nodes(kind: str, changes: bool) -> None:
    """A node must not move its pods from one service to another."""
    old = BY_KIND[kind].type(metadata=meta("a", labels={"app": "a"}))
    new = replace(old, metadata=replace(old.metadata, labels={"app": "b"}, annotations={"c": "d"}, finalizers=("x/y",)))
    actual = prepare_subresource_update(BY_KIND[kind], "status", new, old).metadata
    assert (actual.labels, actual.annotations) == (({"app": "b"}, {"c": "d"}) if changes else ({"app": "a"}, {}))
    assert actual.finalizers == ()


@pytest.mark.parametrize(("version", "accepted"), [("", True), ("0", True), ("7", True), ("6", False), ("8", False)])
def test_update_requires_the_named_resource_version(version: str, accepted: bool) -> None:
    """None and 0 are any."""
    kind, old = BY_KIND["ConfigMap"], BY_KIND["ConfigMap"].type(metadata=meta("a", resource_version="7"))
    new = replace(old, metadata=replace(old.metadata, resource_version=version, labels={"a": "b"}))
    if accepted:
        assert prepare_update(kind, new, old).metadata.resource_version == "7"
        return
    with pytest.raises(StatusError) as caught:
        prepare_update(kind, new, old)
    assert caught.value.status.reason == "Conflict"


@pytest.mark.parametrize("containers", [[{}], [{"name": 7}], [{"name": "A B", "image": "i"}], [7]])
def test_at_most_100_errors_of_an_object_are_reported(containers: list[Any]) -> None:
    where = resolve_path("/api/v1/namespaces/red/pods")
    assert where is not None
    document = {"metadata": {"name": "a"}, "spec": {"containers": containers * 150}}
    with pytest.raises(StatusError) as caught:
        validate(where.resource, decode_object(where, document, "Warn").object)
    status = caught.value.status
    assert (status.code, status.details is not None and len(status.details.causes)) == (422, 100)
    assert status.message.endswith(", more errors that are not listed]")


def test_duplicate_fields_are_treated_as_unknown_fields() -> None:
    where = resolve_path("/api/v1/namespaces/red/pods")
    assert where is not None
    sentence = 'duplicate field "spec.hostNetwork"'
    decoded = decode_object(where, TWO_UNKNOWN, "Warn", duplicates=(sentence,))
    assert decoded.warnings[2:] == (sentence,)
    assert decode_object(where, GOOD, "Ignore", duplicates=(sentence,)).warnings == ()
    with pytest.raises(StatusError) as caught:
        decode_object(where, GOOD, "Strict", duplicates=(sentence,))
    message = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: ' + sentence
    assert (caught.value.status.code, caught.value.status.message) == (400, message)


def test_deletion_that_waits_increments_the_generation_once() -> None:
    def marked(kind: str, obj: Any) -> Any:
        return prepare_delete(BY_KIND[kind], obj, DeleteOptions(), datetime(2026, 1, 1, tzinfo=UTC))

    held = Pod(metadata=meta("web", namespace="red", generation=3, finalizers=("example.com/wait",)))
    once = marked("Pod", held)
    assert (once.metadata.generation, marked("Pod", once).metadata.generation) == (4, 4)
    without = replace(held, metadata=replace(held.metadata, generation=0))
    assert marked("ConfigMap", without).metadata.generation == 0
