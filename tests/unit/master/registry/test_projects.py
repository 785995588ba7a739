"""Projects as a view of namespaces, and project requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.node import Namespace
from api.meta.types import ObjectMeta, OwnerReference
from master.errors import StatusError
from master.registry.projects import admin_binding, decode_project_request, requested_project
from master.resources.metadata import with_metadata
from master.resources.namespaces import PROJECTS, Project
from master.resources.scheme import BY_KIND
from master.server import discovery

NAMES = st.sampled_from(["openshift.io/display-name", "openshift.io/description", "openshift.io/requester", "mine"])


@given(st.dictionaries(NAMES, st.text(max_size=3)), st.sampled_from(["Active", "Terminating"]))
def test_project_converts_to_a_namespace_and_back(annotations: dict[str, str], phase: str) -> None:
    created = BY_KIND["Namespace"].prepare_for_create(
        Namespace(metadata=ObjectMeta(name="red", annotations=annotations))
    )
    namespace = Namespace(metadata=created.metadata, spec=created.spec, status=type(created.status)(phase=phase))
    assert PROJECTS.to_stored(PROJECTS.from_stored(namespace)) == namespace


def test_only_project_display_fields_are_mutable() -> None:
    old = Project(metadata=ObjectMeta(name="red", labels={"a": "b"}))
    names = {"openshift.io/display-name": "Red", "openshift.io/description": "It is red"}
    assert list(PROJECTS.rules.validate_update(old, with_metadata(old, annotations=names))) == []
    wrong = with_metadata(old, annotations={"openshift.io/requester": "eve"}, labels={})
    assert [problem.path for problem in PROJECTS.rules.validate_update(old, wrong)] == [
        "metadata.annotations[openshift.io/requester]",
        "metadata.labels[a]",
    ]
    owner = OwnerReference(api_version="v1", kind="Node", name="n", uid="u")
    wrong = with_metadata(old, finalizers=("a.b/c",), owner_references=(owner,))
    assert [problem.path for problem in PROJECTS.rules.validate_update(old, wrong)] == [
        "metadata.finalizers",
        "metadata.ownerReferences",
    ]


def test_project_request_creates_a_project_with_an_administrator() -> None:
    project_request = decode_project_request({"metadata": {"name": "red"}, "displayName": "Red", "description": None})
    assert requested_project(project_request, "bob")["metadata"]["annotations"] == {
        "openshift.io/display-name": "Red",
        "openshift.io/description": "",
        "openshift.io/requester": "bob",
    }
    for forged in ({"openshift.io/sa.scc.uid-range": "0/9"}, {"openshift.io/requester": "eve"}):
        document = {"metadata": {"name": "red", "annotations": forged, "labels": forged}}
        metadata = requested_project(decode_project_request(document), "bob")["metadata"]
        assert not forged.items() & {**metadata["annotations"], **metadata.get("labels", {})}.items()
    binding = admin_binding("red", "bob")
    assert list(BY_KIND["RoleBinding"].rules.validate(binding)) == []
    assert (binding.role_ref.name, binding.subjects[0].name) == ("admin", "bob")


@pytest.mark.parametrize("document", [None, [], {"metadata": []}, {"displayName": 7}, {"metadata": {"name": "kube-x"}}])
def test_invalid_project_request_is_rejected(document: object) -> None:
    with pytest.raises(StatusError):
        decode_project_request(document)


def test_discovery_lists_projects_and_project_requests() -> None:
    actual = discovery.resources("project.openshift.io", "v1")
    assert actual is not None
    rows = {resource["name"]: resource["verbs"] for resource in actual["resources"]}
    assert rows["projectrequests"] == ["create", "list"]
    assert "deletecollection" not in rows["projects"]
    groups = [group["name"] for group in discovery.groups()["groups"]]
    assert groups.count("project.openshift.io") == 1
    items = [
        group["metadata"].get("name") for group in discovery.aggregated(core=False, discovery_version="v2")["items"]
    ]
    assert items == groups
