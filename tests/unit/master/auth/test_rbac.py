"""The permissions of RBAC rules, the rules that others cover, and their subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.meta.types import ObjectMeta
from master.auth.attributes import Attributes, PathAttributes, User
from master.auth.rbac import ALL_RULES, BindingIndex, BindingMatch, decide, format_rule, rules_not_covered
from master.resources.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject
from master.resources.scheme import STORED_TYPES
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put

BINDING = ClusterRoleBinding(metadata=ObjectMeta(name="x"), role_ref=RoleRef(kind="ClusterRole", name="y"))
LOCAL = RoleBinding(metadata=ObjectMeta(name="x", namespace="red"), role_ref=RoleRef(kind="Role", name="y"))
BOB = Subject(kind="User", name="bob")
ROBOT = Subject(kind="ServiceAccount", name="robot", namespace="blue")


def rule(verbs: str, groups: str = "core", resources: str = "", names: str = "", paths: str = "") -> PolicyRule:
    return PolicyRule(
        verbs=tuple(verbs.split()),
        api_groups=() if paths else tuple("" if group == "core" else group for group in groups.split()),
        resources=tuple(resources.split()),
        resource_names=tuple(names.split()),
        non_resource_urls=tuple(paths.split()),
    )


def allows(policy_rule: PolicyRule, requested: Attributes | PathAttributes) -> bool:
    return decide(requested, [BindingMatch(BINDING, BOB, (policy_rule,))]).allowed


LOG = Attributes("get", resource="pods", subresource="log", namespace="red", name="p")
SCALE = Attributes("update", "apps", "deployments", "scale", "red", "d")

ALLOWING = [
    (rule("get list", resources="pods"), Attributes("list", resource="pods")),
    (rule("*", "*", "*"), SCALE),
    (rule("get", resources="pods/log"), LOG),
    (rule("get", resources="*/log"), LOG),
    (rule("update", "apps", "*/scale"), SCALE),
    (rule("get", resources="pods", names="p q"), Attributes("get", resource="pods", name="q")),
    (rule("get", paths="/apis/*"), PathAttributes("get", "/apis/apps/v1")),
    (rule("get", paths="/healthz*"), PathAttributes("get", "/healthz/ping")),
    (rule("*", paths="*"), PathAttributes("post", "/anything")),
]
REFUSING = [
    (rule("get", resources="pods"), Attributes("list", resource="pods")),
    (rule("get", resources="pods"), LOG),
    (rule("get", resources="pods/*"), LOG),
    (rule("get", resources="log"), LOG),
    (rule("get", resources="*/log"), Attributes("get", resource="pods", name="p")),
    (rule("update", resources="*/scale"), SCALE),
    (rule("get", resources="pods", names="p"), Attributes("get", resource="pods", name="q")),
    (rule("list", resources="pods", names="p"), Attributes("list", resource="pods")),
    (rule("get", paths="/apis"), PathAttributes("get", "/apis/")),
    (rule("get", paths="/a*c"), PathAttributes("get", "/abc")),
    (rule("get", paths="*"), PathAttributes("post", "/apis")),
    (rule("*", "*", "*"), PathAttributes("get", "/apis")),
    (rule("*", paths="*"), Attributes("get", resource="pods")),
]


@pytest.mark.parametrize(("policy_rule", "attributes"), ALLOWING)
def test_rbac_rule_allows(policy_rule: PolicyRule, attributes: Attributes | PathAttributes) -> None:
    assert allows(policy_rule, attributes)


@pytest.mark.parametrize(("policy_rule", "attributes"), REFUSING)
def test_rbac_rule_does_not_allow(policy_rule: PolicyRule, attributes: Attributes | PathAttributes) -> None:
    assert not allows(policy_rule, attributes)


def test_rbac_reason_names_binding_role_and_subject() -> None:
    rules = (rule("get", resources="pods"),)
    attributes = Attributes("get", resource="pods")
    assert decide(attributes, [BindingMatch(BINDING, BOB, rules)]).reason == (
        'RBAC: allowed by ClusterRoleBinding "x" of ClusterRole "y" to User "bob"'
    )
    assert decide(attributes, [BindingMatch(LOCAL, ROBOT, rules)]).reason == (
        'RBAC: allowed by RoleBinding "x/red" of Role "y" to ServiceAccount "robot/blue"'
    )
    assert decide(attributes, []).reason == ""
    assert (
        decide(attributes, [BindingMatch(LOCAL, BOB, None)]).reason
        == 'RBAC: role.rbac.authorization.k8s.io "y" not found'
    )
    both = decide(attributes, [BindingMatch(LOCAL, BOB, None), BindingMatch(BINDING, BOB, None)])
    assert both.reason.startswith("RBAC: [role.rbac")


# --- rules against rules ----------------------------------------------------------------------------------------------


def test_role_with_many_bindings_is_evaluated_once() -> None:
    """A tenant could bind a role with many rules thousands of times."""
    evaluated = 0

    class CountedRules(tuple[PolicyRule, ...]):
        def __iter__(self) -> Iterator[PolicyRule]:
            nonlocal evaluated
            evaluated += 1
            return super().__iter__()

    rules, others = CountedRules((rule("get", "core", "pods"),)), CountedRules((rule("get", "core", "nodes"),))
    matches = [*[BindingMatch(BINDING, BOB, rules)] * 5, BindingMatch(BINDING, BOB, others)]
    assert not decide(Attributes("get", "", "secrets"), matches).allowed
    assert evaluated == 2
    assert decide(Attributes("get", "", "nodes"), matches).allowed
    gone = [
        BindingMatch(replace(BINDING, role_ref=RoleRef(kind="Role", name=str(n % 20))), BOB, None) for n in range(60)
    ]
    assert decide(Attributes("get", "", "secrets"), gone).reason.count("not found") == 10


def test_missing_permissions_are_reported_as_minimal_rules() -> None:
    held = [rule("get", resources="pods"), rule("update", "apps", "*/scale"), rule("get", paths="/apis/*")]
    wanted = [
        rule("get list watch", resources="pods secrets"),
        rule("update", "apps", "deployments/scale"),
        rule("get", paths="/apis/apps /metrics"),
    ]
    assert [format_rule(policy_rule) for policy_rule in rules_not_covered(held, wanted)] == [
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list" "watch"]}',
        '{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}',
        '{NonResourceURLs:["/metrics"], Verbs:["get"]}',
    ]


def test_rule_with_resource_names_does_not_cover_one_without() -> None:
    named = rule("get", resources="pods", names="p")
    assert rules_not_covered([named], [rule("get", resources="pods")])
    assert rules_not_covered([named], [rule("get", resources="pods", names="q")])
    assert not rules_not_covered([rule("get", resources="pods")], [named])
    assert not rules_not_covered([named], [named])


words = st.lists(st.sampled_from(["*", "a", "b"]), min_size=1, max_size=2, unique=True).map(" ".join)
resources = st.lists(st.sampled_from(["*", "p", "p/s", "*/s", "q"]), min_size=1, max_size=2, unique=True).map(" ".join)
named = st.sampled_from(["", "n", "m n"])
rules = st.builds(rule, words, words, resources, named) | st.builds(
    lambda verbs, path: rule(verbs, paths=path), words, st.sampled_from(["*", "/a", "/a/*", "/a/b"])
)
requests = st.builds(
    Attributes,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["p", "q", "r"]),
    st.sampled_from(["", "s", "t"]),
    name=st.sampled_from(["", "n", "m", "o"]),
) | st.builds(PathAttributes, st.sampled_from(["a", "b", "c"]), st.sampled_from(["/a", "/a/b", "/a/c", "/d"]))


@given(st.lists(rules, max_size=4), rules, requests)
def test_covered_rule_allows_nothing_new(
    held: list[PolicyRule], wanted: PolicyRule, attributes: Attributes | PathAttributes
) -> None:
    missing = rules_not_covered(held, [wanted])
    if allows(wanted, attributes):
        assert any(allows(policy_rule, attributes) for policy_rule in (*held, *missing))
    assert not rules_not_covered(ALL_RULES, [wanted])
    assert not rules_not_covered([*held, *missing], [wanted])


# --- who has them -----------------------------------------------------------------------------------------------------

READER = ClusterRole(metadata=ObjectMeta(name="reader"), rules=(rule("get", resources="pods"),))
WRITER = Role(metadata=ObjectMeta(name="writer", namespace="red"), rules=(rule("create", resources="pods"),))


def bound(name: str, *subjects: Subject, namespace: str = "", role: str = "ClusterRole/reader") -> RoleBinding:
    kind, _, of = role.partition("/")
    created = RoleBinding if namespace else ClusterRoleBinding
    return created(  # type: ignore[return-value]
        metadata=ObjectMeta(name=name, namespace=namespace), subjects=subjects, role_ref=RoleRef(kind=kind, name=of)
    )


def held(grants: BindingIndex, user: User, namespace: str) -> list[str]:
    actual = (
        (binding_match.binding.metadata.name, binding_match.rules) for binding_match in grants.of(user, namespace)
    )
    return [f"{name}:{'?' if rules is None else len(rules)}" for name, rules in actual]


async def test_rbac_follows_changed_bindings(tmp_path: Path) -> None:
    store = await SQLiteStorage.open(tmp_path / "db", STORED_TYPES)
    try:
        (first,) = await store.write(put(bound("first", BOB)))
        grants = BindingIndex(store)
        bob, robot = User("bob", frozenset(("dev",))), User("system:serviceaccount:red:robot", frozenset())
        assert held(grants, bob, "") == ["first:?"]
        await store.write(put(READER), put(WRITER))
        assert held(grants, bob, "") == ["first:1"]
        dev = Subject(kind="Group", name="dev")
        local = Subject(kind="ServiceAccount", name="robot")
        await store.write(
            put(bound("devs", dev, BOB, namespace="red", role="Role/writer")),
            put(bound("robots", local, namespace="red")),
            put(bound("elsewhere", local, namespace="blue")),
        )
        assert held(grants, bob, "red") == ["first:1", "devs:1", "devs:1"]
        assert held(grants, bob, "blue") == ["first:1"]
        assert held(grants, robot, "red") == ["robots:1"]
        assert held(grants, robot, "blue") == []
        await store.write(put(replace(first, subjects=(dev,))))
        assert held(grants, User("bob", frozenset()), "") == []
        assert held(grants, bob, "") == ["first:1"]
        await store.write(delete(first))
        assert held(grants, bob, "") == []
        assert held(BindingIndex(store), bob, "red") == held(grants, bob, "red") == ["devs:1", "devs:1"]
    finally:
        await asyncio.shield(store.close())
