"""Roles and bindings of authorization.openshift.io: conversion, defaults, names and subjects, validation."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.meta.types import ObjectMeta
from api.validation.registry import check, check_update, decode, default
from master.resources import legacy_rbac, rbac
from master.resources.legacy_rbac import (
    LEGACY_CLUSTER_ROLE_BINDINGS,
    LEGACY_CLUSTER_ROLES,
    LEGACY_ROLE_BINDINGS,
    LEGACY_ROLES,
    ROLE_BINDING_RESTRICTIONS,
)
from master.resources.resource import AnyResource

RESOURCES = {
    resource.kind: resource
    for resource in (
        LEGACY_ROLES,
        LEGACY_CLUSTER_ROLES,
        LEGACY_ROLE_BINDINGS,
        LEGACY_CLUSTER_ROLE_BINDINGS,
        ROLE_BINDING_RESTRICTIONS,
    )
}
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TEXT = st.text(max_size=4)
NAMES = st.sampled_from(
    ["amy", "system:admin", "b64:eA", "system:serviceaccount:blue:robot", "system:serviceaccount:x"]
)
SUBJECTS = st.one_of(
    st.builds(rbac.Subject, kind=st.sampled_from(["User", "Group"]), api_group=st.just(rbac.RBAC_GROUP), name=NAMES),
    st.builds(rbac.Subject, kind=st.just("ServiceAccount"), name=NAMES, namespace=st.sampled_from(["", "blue"])),
)
REFERENCES = st.builds(
    rbac.RoleRef,
    api_group=st.just(rbac.RBAC_GROUP),
    kind=st.sampled_from(["Role", "ClusterRole"]),
    name=st.just("edit"),
)
BINDINGS = st.builds(
    rbac.RoleBinding,
    metadata=st.just(ObjectMeta(name="b", namespace="red")),
    subjects=st.lists(SUBJECTS, max_size=4).map(tuple),
    role_ref=REFERENCES,
)
TEXTS = st.lists(TEXT, max_size=2).map(tuple)
RULES = st.builds(
    rbac.PolicyRule, verbs=TEXTS, api_groups=TEXTS, resources=TEXTS, resource_names=TEXTS, non_resource_urls=TEXTS
)


def legacy(kind: str, **document: Any) -> Any:
    """Return an object with its defaults, as the server decodes it. `document` has the fields by their JSON names."""
    resource = RESOURCES[kind]
    namespace = {"namespace": "red"} if resource.namespaced else {}
    obj = msgspec.convert({"metadata": {"name": "b", **namespace}, **document}, resource.type)
    return default(obj, resource.rules)


def stored(obj: Any) -> Any:
    resource: AnyResource = RESOURCES[obj.KIND]
    return resource.to_stored(obj)


def paths(obj: Any) -> list[str]:
    return [error.path for error in check(obj, RESOURCES[obj.KIND].rules)]


@given(BINDINGS)
def test_binding_round_trips_through_the_legacy_form(binding: rbac.RoleBinding) -> None:
    shown = LEGACY_ROLE_BINDINGS.from_stored(binding)
    assert LEGACY_ROLE_BINDINGS.to_stored(shown) == binding
    again = default(msgspec.convert(msgspec.to_builtins(shown), LEGACY_ROLE_BINDINGS.type), LEGACY_ROLE_BINDINGS.rules)
    assert again == shown


@given(st.lists(RULES, max_size=3).map(tuple))
def test_role_round_trips_through_the_legacy_form(rules: tuple[rbac.PolicyRule, ...]) -> None:
    role = rbac.ClusterRole(metadata=ObjectMeta(name="r"), rules=rules)
    assert LEGACY_CLUSTER_ROLES.to_stored(LEGACY_CLUSTER_ROLES.from_stored(role)) == role


def test_names_of_a_client_become_subjects() -> None:
    users = ["amy", "system:admin", "system:serviceaccount:blue:robot", "system:serviceaccount:a:b:c"]
    binding = legacy("RoleBinding", userNames=users, groupNames=["dev", "system:nodes"], roleRef={"name": "edit"})
    assert [(subject.kind, subject.namespace, subject.name) for subject in binding.subjects] == [
        ("User", "", "amy"),
        ("SystemUser", "", "system:admin"),
        ("ServiceAccount", "blue", "robot"),
        ("SystemUser", "", "system:serviceaccount:a:b:c"),
        ("Group", "", "dev"),
        ("SystemGroup", "", "system:nodes"),
    ]
    assert {subject.kind for subject in stored(binding).subjects} == {"User", "ServiceAccount", "Group"}
    assert stored(binding).role_ref == rbac.RoleRef(api_group=rbac.RBAC_GROUP, kind="ClusterRole", name="edit")


def test_subjects_of_a_client_become_names() -> None:
    subjects = [
        {"kind": "SystemUser", "name": "amy"},
        {"kind": "ServiceAccount", "name": "robot"},
        {"kind": "SystemGroup", "name": "system:nodes"},
    ]
    binding = legacy("RoleBinding", subjects=subjects, roleRef={"name": "mine", "namespace": "red"})
    assert binding.user_names == ("amy", "system:serviceaccount:red:robot")
    assert binding.group_names == ("system:nodes",)
    assert [subject.kind for subject in binding.subjects] == ["User", "ServiceAccount", "SystemGroup"]
    assert stored(binding).role_ref.kind == "Role"


def test_names_replace_other_subjects_and_empty_names_remove_them() -> None:
    subjects = [{"kind": "User", "name": "amy"}]
    named = legacy("RoleBinding", subjects=subjects, userNames=["bob"], roleRef={"name": "edit"})
    assert (named.user_names, [subject.name for subject in named.subjects]) == (("bob",), ["bob"])
    emptied = legacy("RoleBinding", subjects=subjects, userNames=[], roleRef={"name": "edit"})
    assert (emptied.user_names, emptied.subjects) == (None, ())


def test_update_of_subjects_counts_if_the_names_were_sent_back() -> None:
    old = legacy("RoleBinding", userNames=["amy"], roleRef={"name": "edit"})
    document = msgspec.json.decode(msgspec.json.encode(old))
    added = {**document, "subjects": [*document["subjects"], {"kind": "User", "name": "bob"}]}
    normalized = LEGACY_ROLE_BINDINGS.normalize_update(added, old)
    new = default(msgspec.convert(normalized, LEGACY_ROLE_BINDINGS.type), LEGACY_ROLE_BINDINGS.rules)
    assert new.user_names == ("amy", "bob")
    renamed = {**added, "userNames": ["eve"]}
    assert LEGACY_ROLE_BINDINGS.normalize_update(renamed, old) == renamed
    assert LEGACY_ROLE_BINDINGS.normalize_update(document, old) == document
    assert LEGACY_ROLE_BINDINGS.normalize_update(["x"], old) == ["x"]


@pytest.mark.parametrize(
    ("rule", "groups"),
    [
        ({"verbs": ["get"], "resources": ["pods"]}, ("",)),
        ({"verbs": ["*"], "resources": ["*"]}, ("*",)),
        ({"verbs": ["*"], "resources": ["*"], "apiGroups": ["apps"]}, ("apps",)),
        ({"verbs": ["get"], "nonResourceURLs": ["/x"]}, ()),
    ],
)
def test_rule_without_api_groups_means_the_core(rule: dict[str, Any], groups: tuple[str, ...]) -> None:
    role = legacy("ClusterRole", rules=[rule])
    assert stored(role).rules[0].api_groups == groups
    assert paths(role) == []


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        ("Role", {"rules": [{"verbs": ["get"], "resources": ["pods"], "attributeRestrictions": {}}]},
         ["rules[0].attributeRestrictions"]),
        ("Role", {"rules": [{"resources": ["pods"]}]}, ["rules[0].verbs"]),
        ("RoleBinding", {"subjects": [{"kind": "Robot", "name": "x"}], "roleRef": {"name": "edit"}},
         ["subjects[0].kind"]),
        ("RoleBinding", {"userNames": [""], "roleRef": {"name": "edit"}}, ["subjects[0].name"]),
        ("RoleBinding", {"roleRef": {"name": "mine", "namespace": "blue"}}, ["roleRef.namespace"]),
        ("RoleBinding", {}, ["roleRef.name"]),
        ("ClusterRoleBinding", {"roleRef": {"name": "mine", "namespace": "red"}}, ["roleRef.namespace"]),
        ("ClusterRoleBinding", {"subjects": [{"kind": "ServiceAccount", "name": "x"}], "roleRef": {"name": "edit"}},
         ["subjects[0].namespace"]),
        ("RoleBinding", {"userNames": ["amy"], "roleRef": {"name": "edit"}}, []),
        ("RoleBindingRestriction", {"spec": {}}, ["spec"]),
        ("RoleBindingRestriction", {"spec": {"userrestriction": {}}}, ["spec.userrestriction"]),
        ("RoleBindingRestriction",
         {"spec": {"userrestriction": {"users": ["a"]}, "grouprestriction": {"groups": ["b"]}}}, ["spec"]),
        ("RoleBindingRestriction", {"spec": {"serviceaccountrestriction": {"serviceaccounts": [{}]}}},
         ["spec.serviceaccountrestriction.serviceaccounts[0].name"]),
        ("RoleBindingRestriction",
         {"spec": {"grouprestriction": {"labels": [{"matchExpressions": [{"key": "a", "operator": "x"}]}]}}},
         ["spec.grouprestriction.labels[0].matchExpressions[0].operator"]),
        ("RoleBindingRestriction", {"spec": {"serviceaccountrestriction": {"namespaces": ["red"]}}}, []),
    ],
)  # fmt: skip
def test_invalid_objects_are_rejected(kind: str, document: dict[str, Any], expected: list[str]) -> None:
    assert paths(legacy(kind, **document)) == expected


def test_role_of_a_binding_stays() -> None:
    old, new = (legacy("RoleBinding", roleRef={"name": name}) for name in ("edit", "admin"))
    assert [error.path for error in check_update(old, new, LEGACY_ROLE_BINDINGS.rules)] == ["roleRef"]
    assert list(check_update(old, old, LEGACY_ROLE_BINDINGS.rules)) == []


def test_rules_of_a_role_have_a_limited_number_of_combinations() -> None:
    """The escalation check expands them: 4 KB of names could hold the master for minutes."""
    many = [f"x{number}" for number in range(100)]
    rule = {"verbs": many, "apiGroups": many, "resources": ["pods"]}
    for resource in (rbac.ROLES, LEGACY_ROLES):
        _, errors, _ = decode(resource.type, {"metadata": {"name": "r"}, "rules": [rule]}, resource.rules)
        assert errors == ()
        document = {"metadata": {"name": "r"}, "rules": [{**rule, "resources": ["pods", "secrets"]}]}
        _, errors, _ = decode(resource.type, document, resource.rules)
        assert [error.path for error in errors] == ["rules"]


def test_columns_of_a_restriction_name_its_subjects() -> None:
    accounts = {"serviceaccounts": [{"name": "robot"}, {"name": "x", "namespace": "blue"}], "namespaces": ["green"]}
    users = {"users": ["amy"], "groups": ["dev"], "labels": [{"matchLabels": {"a": "b"}}]}
    rows = [
        [column.cell(legacy("RoleBindingRestriction", spec=spec), NOW) for column in ROLE_BINDING_RESTRICTIONS.columns]
        for spec in (
            {"serviceaccountrestriction": accounts},
            {"userrestriction": users},
            {"grouprestriction": {"groups": ["dev"]}},
        )
    ]
    assert [row[1:3] for row in rows] == [
        ["Service Account", "red/robot, blue/x, green/*"],
        ["User", "amy, group dev, a=b"],
        ["Group", "dev"],
    ]


def test_kinds_of_subjects_are_those_of_openshift() -> None:
    assert (legacy_rbac.SYSTEM_USER, legacy_rbac.SYSTEM_GROUP) == ("SystemUser", "SystemGroup")
