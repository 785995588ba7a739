"""Pod Security admission: labels of namespaces, pods, workloads, and the pods of a namespace whose level changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.core.node import Namespace
from api.core.pod import Container, EphemeralContainer, Pod, PodSpec
from api.meta.types import ObjectMeta, OwnerReference
from master.admission.plugin import AdmissionRequest, Operation, ignore_annotation
from master.admission.pod_security.plugin import PodSecurity, pod_warnings
from master.admission.pod_security.policy import LevelVersion, parse_policy
from master.errors import StatusError
from master.resources.deployments import DEPLOYMENTS, Deployment, DeploymentSpec
from master.resources.metadata import with_metadata
from master.resources.namespaces import NAMESPACES
from master.resources.pod_template import PodTemplateSpec
from master.resources.pods import PODS
from master.resources.resource import AnyResource
from master.resources.scheme import STORED_TYPES
from master.storage.interface import Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put

PREFIX = "pod-security.kubernetes.io/"
ROOT = Pod(
    metadata=ObjectMeta(name="p", namespace="red"),
    spec=PodSpec(host_network=True, containers=(Container(name="a", image="i"),)),
)
ORDINARY = replace(ROOT, spec=replace(ROOT.spec, host_network=False))


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    storage = await SQLiteStorage.open(tmp_path / "store.db", STORED_TYPES)
    yield storage
    await storage.close()


def namespace(**labels: str) -> Namespace:
    named = {f"{PREFIX}{key.replace('_', '-')}": value for key, value in labels.items()}
    return Namespace(metadata=ObjectMeta(name="red", labels=named))


def validate(
    storage: SQLiteStorage,
    resource: AnyResource,
    obj: Any,
    old: Any = None,
    subresource: str = "",
    annotate: Callable[[str, str], None] = ignore_annotation,
) -> list[str]:
    """Validate a write and return its warnings."""
    warnings: list[str] = []
    request = AdmissionRequest(
        operation=Operation.CREATE if old is None else Operation.UPDATE,
        resource=resource,
        now=datetime.now(UTC),
        random_suffix=lambda: "abcde",
        subresource=subresource,
        old=old,
        warn=warnings.append,
        annotate=annotate,
    )
    PodSecurity().validate(request, obj, Transaction(storage))
    return warnings


async def test_enforced_level_rejects_pods(storage: SQLiteStorage) -> None:
    assert validate(storage, PODS, ROOT) == []
    await storage.write(put(namespace(enforce="baseline", enforce_version="v1.30")))
    assert validate(storage, PODS, ORDINARY) == []
    with pytest.raises(StatusError) as rejected:
        validate(storage, PODS, ROOT)
    status = rejected.value.status
    expected = 'pods "p" is forbidden: violates PodSecurity "baseline:v1.30": host namespaces (hostNetwork=true)'
    assert (status.code, status.message) == (403, expected)


async def test_warnings_are_given_with_success(storage: SQLiteStorage) -> None:
    await storage.write(put(namespace(warn="baseline")))
    expected = ['would violate PodSecurity "baseline:latest": host namespaces (hostNetwork=true)']
    assert validate(storage, PODS, ROOT) == expected
    template = PodTemplateSpec(spec=ROOT.spec)
    deployment = Deployment(metadata=ObjectMeta(name="d", namespace="red"), spec=DeploymentSpec(template=template))
    assert validate(storage, DEPLOYMENTS, deployment) == expected
    assert validate(storage, PODS, ORDINARY) == []


async def test_workload_is_warned_of_an_enforced_level_and_not_rejected(storage: SQLiteStorage) -> None:
    await storage.write(put(namespace(enforce="baseline")))
    template = PodTemplateSpec(spec=ROOT.spec)
    deployment = Deployment(metadata=ObjectMeta(name="d", namespace="red"), spec=DeploymentSpec(template=template))
    assert len(validate(storage, DEPLOYMENTS, deployment)) == 1


async def test_update_counts_if_containers_change(storage: SQLiteStorage) -> None:
    await storage.write(put(namespace(enforce="baseline")))
    assert validate(storage, PODS, with_metadata(ROOT, labels={"a": "b"}), ROOT) == []
    other_image = replace(ROOT, spec=replace(ROOT.spec, containers=(Container(name="a", image="other"),)))
    debug = replace(ROOT, spec=replace(ROOT.spec, ephemeral_containers=(EphemeralContainer(name="d", image="i"),)))
    for new, subresource in ((other_image, ""), (debug, "ephemeralcontainers")):
        with pytest.raises(StatusError, match="violates PodSecurity"):
            validate(storage, PODS, new, ROOT, subresource)
    assert validate(storage, PODS, other_image, ROOT, "status") == []


async def test_labels_have_known_values(storage: SQLiteStorage) -> None:
    bad = namespace(enforce="strict", warn_version="1.30")
    with pytest.raises(StatusError) as rejected:
        validate(storage, NAMESPACES, bad)
    status = rejected.value.status
    assert (status.code, status.reason) == (422, "Invalid")
    assert "must be one of privileged, baseline, restricted" in status.message
    assert 'must be "latest" or "v1.x"' in status.message
    assert validate(storage, NAMESPACES, with_metadata(bad, annotations={"a": "b"}), bad) == []


def test_invalid_label_that_is_stored_is_the_safe_one() -> None:
    policy = parse_policy({f"{PREFIX}enforce": "strict", f"{PREFIX}audit": "x", f"{PREFIX}enforce-version": "v1.x"})
    assert (str(policy.enforce), str(policy.audit)) == ("restricted:latest", "privileged:latest")
    assert policy.warn == policy.enforce
    both = {f"{PREFIX}enforce": "restricted", f"{PREFIX}warn": "baseline", f"{PREFIX}warn-version": "v1.25"}
    assert str(parse_policy(both).warn) == "baseline:v1.25"
    assert parse_policy({}).enforce == LevelVersion()


@pytest.mark.parametrize(("level", "is_named"), [("strict", True), ("privileged", False)])
async def test_invalid_label_that_is_stored_is_named_in_audit_events(
    storage: SQLiteStorage, level: str, is_named: bool
) -> None:
    await storage.write(put(namespace(audit=level)))
    template = PodTemplateSpec(spec=ORDINARY.spec)
    deployment = Deployment(metadata=ObjectMeta(name="d", namespace="red"), spec=DeploymentSpec(template=template))
    for resource, obj in ((PODS, ORDINARY), (DEPLOYMENTS, deployment)):
        annotations: dict[str, str] = {}
        validate(storage, resource, obj, annotate=annotations.__setitem__)
        error = annotations.get(f"{PREFIX}error", "")
        assert error.startswith(f"Failed to parse policy: metadata.labels[{PREFIX}audit]") == is_named
        assert ("must be one of privileged, baseline, restricted" in error) == is_named


async def test_new_level_warns_of_the_pods_that_it_would_reject(storage: SQLiteStorage) -> None:
    await storage.write(put(ROOT), put(with_metadata(ROOT, name="q")), put(with_metadata(ORDINARY, name="r")))
    assert validate(storage, NAMESPACES, namespace(enforce="baseline"), namespace()) == [
        'existing pods in namespace "red" violate the new PodSecurity enforce level "baseline:latest"',
        "p (and 1 other pod): host namespaces (hostNetwork=true)",
    ]
    assert (
        validate(storage, NAMESPACES, namespace(enforce="baseline", warn="baseline"), namespace(enforce="baseline"))
        == []
    )
    assert validate(storage, NAMESPACES, namespace(enforce="privileged"), namespace(enforce="baseline")) == []


def test_pods_of_one_controller_are_judged_once() -> None:
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="r", uid="u", controller=True)
    pods = [with_metadata(ROOT, name=f"r-{number}", owner_references=(owner,)) for number in range(5)]
    _, warning = pod_warnings("red", LevelVersion("baseline"), pods)
    assert warning == "r-0: host namespaces (hostNetwork=true)"
