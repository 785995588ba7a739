"""Projects as a view of namespaces, and project requests."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.core.node import Namespace
from api.meta.types import ObjectMeta, OwnerReference
from master.errors import StatusError
from master.registry.projects import check_count, decode_project_request, not_allowed
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


@pytest.mark.parametrize(
    "document", [None, [], {"metadata": []}, {"displayName": 7}, {"metadata": {"name": "Red"}}, {"metadata": {}}]
)
def test_invalid_project_request_is_rejected(document: object) -> None:
    with pytest.raises(StatusError):
        decode_project_request(document)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("openshift", 'with the name "openshift"'),
        ("kubernetes", 'with the name "kubernetes"'),
        ("kube", 'with the name "kube"'),
        ("openshift-x", 'starting with "openshift-"'),
        ("kubernetes-x", 'starting with "kubernetes-"'),
        ("kube-x", 'starting with "kube-"'),
    ],
)
def test_reserved_names_are_rejected_in_the_words_of_openshift(name: str, reason: str) -> None:
    with pytest.raises(StatusError) as rejected:
        decode_project_request({"metadata": {"name": name}})
    assert rejected.value.status.message == (
        f'projects.project.openshift.io "{name}" is forbidden: cannot request a project {reason}'
    )
    assert decode_project_request({"metadata": {"name": "kubernetes2"}}).metadata.name == "kubernetes2"


def test_limit_counts_the_projects_that_a_user_has_requested() -> None:
    def requested(name: str, user: str, deleted: str | None = None) -> Namespace:
        annotations = {"openshift.io/requester": user}
        return Namespace(metadata=ObjectMeta(name=name, annotations=annotations, deletion_timestamp=deleted))

    request = decode_project_request({"metadata": {"name": "new"}})
    namespaces = [requested("a", "bob"), requested("b", "eve"), requested("c", "bob", "2026-01-01T00:00:00Z")]
    now = datetime.datetime(2026, 1, 1, 0, 4, tzinfo=datetime.UTC)
    for limit in (None, 2):
        check_count(request, "bob", namespaces, limit, now)
    with pytest.raises(StatusError, match=r"user bob cannot create more than 1 project\(s\)\."):
        check_count(request, "bob", namespaces, 1, now)
    with pytest.raises(StatusError, match=r"user bob cannot create more than 2 project\(s\)\."):
        check_count(request, "bob", namespaces, 2, now + datetime.timedelta(minutes=5))


def test_own_message_is_the_cause_that_clients_print() -> None:
    assert not_allowed("").status.message == "You may not request a new project via this API."
    status = not_allowed("Ask the desk.").status
    assert status.message == "Ask the desk."
    assert status.details is not None
    assert [cause.message for cause in status.details.causes] == ["Ask the desk."]


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
