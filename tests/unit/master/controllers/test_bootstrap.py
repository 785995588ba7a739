"""Objects that every cluster has from the start."""

from __future__ import annotations

from msgspec.structs import replace

from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork
from master.controllers import bootstrap
from master.controllers.actions import Update
from master.resources.namespaces import SYSTEM_NAMESPACES
from master.resources.services import ServiceCIDR
from master.resources.volumes import StorageClass
from tests.unit.master.action_lines import CONFIG, FLAT, lines
from tests.unit.master.examples import meta, namespace

# --- from the start ---------------------------------------------------------------------------------------------------


def test_bootstrap_creates_system_objects() -> None:
    actual = list(bootstrap.bootstrap_objects(CONFIG, [], None))
    *namespaces, network = lines(actual)
    assert namespaces == [f"+ Namespace {name}" for name in SYSTEM_NAMESPACES]
    assert network == "+ ClusterNetwork default"
    created = actual[-1].object
    assert isinstance(created, ClusterNetwork)
    assert created.plugin_name == "redhat/openshift-ovs-multitenant"
    there = replace(created, metadata=meta("default"))
    always = [namespace(name) for name in SYSTEM_NAMESPACES]
    assert lines(bootstrap.bootstrap_objects(CONFIG, always, there)) == []
    assert lines(bootstrap.bootstrap_objects(FLAT, always, there)) == ["~ ClusterNetwork default"]
    assert lines(bootstrap.bootstrap_objects(CONFIG, always[:3], there)) == ["+ Namespace kube-system"]


def test_bootstrap_creates_system_priority_classes() -> None:
    both = list(bootstrap.bootstrap_priority_classes([]))
    assert lines(both) == ["+ PriorityClass system-cluster-critical", "+ PriorityClass system-node-critical"]
    assert lines(bootstrap.bootstrap_priority_classes([both[0].object])) == lines(both[1:])  # type: ignore[list-item]


def test_service_network_is_readable() -> None:
    (created,) = bootstrap.bootstrap_service_cidr(CONFIG, None)
    actual = created.object
    assert isinstance(actual, ServiceCIDR)
    assert lines([created]) == ["+ ServiceCIDR kubernetes"]
    assert actual.spec.cidrs == (str(CONFIG.service_network),)
    assert list(bootstrap.bootstrap_service_cidr(CONFIG, actual)) == []
    other = replace(actual, spec=replace(actual.spec, cidrs=("10.96.0.0/12",)))
    assert list(bootstrap.bootstrap_service_cidr(CONFIG, other)) == [Update(actual, other)]


def test_class_of_local_volumes_is_the_default_if_there_is_none() -> None:
    annotation = {"storageclass.kubernetes.io/is-default-class": "true"}
    (created,) = bootstrap.bootstrap_storage_class([])
    assert (created.object.metadata.name, created.object.metadata.annotations) == ("local", annotation)
    assert isinstance(created.object, StorageClass)
    assert not list(bootstrap.bootstrap_storage_class([created.object]))
    own = StorageClass(metadata=ObjectMeta(name="own", annotations=annotation))
    (beside,) = bootstrap.bootstrap_storage_class([own])
    assert beside.object.metadata.annotations == {}, "the administrator's default stays"
    changed = StorageClass(metadata=ObjectMeta(name="local"))
    assert not list(bootstrap.bootstrap_storage_class([changed])), "a class that an administrator has changed stays"
