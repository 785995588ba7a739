"""Default and aggregated cluster roles, and the rights that are needed to grant roles."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from api.meta.selectors import LabelSelector
from api.meta.types import Object, ObjectMeta
from master.auth import impersonation, rbac
from master.auth.attributes import Attributes, User
from master.auth.bootstrap_policy import AUTO_UPDATE, BINDINGS, ROLES
from master.auth.rbac import ALL_RULES, rules_not_covered
from master.controllers.actions import Create, ForceDelete, Update
from master.controllers.cluster_roles import reconcile
from master.errors import StatusError
from master.resources.metadata import with_metadata
from master.resources.rbac import (
    AggregationRule,
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    RoleBinding,
    RoleRef,
    Subject,
)
from master.resources.scheme import BY_KIND, BY_PATH

PODS = PolicyRule(verbs=("get",), api_groups=("",), resources=("pods",))
SECRETS = PolicyRule(verbs=("get",), api_groups=("",), resources=("secrets",))


def settled(
    roles: Iterable[ClusterRole], bindings: Iterable[ClusterRoleBinding]
) -> tuple[dict[str, ClusterRole], dict[str, ClusterRoleBinding]]:
    """Return the state after a pass, and check that the next pass writes nothing."""
    actual: dict[tuple[str, str], Object] = {(obj.KIND, obj.metadata.name): obj for obj in (*roles, *bindings)}
    for write in reconcile(list(roles), list(bindings)):
        if isinstance(write, ForceDelete):
            del actual[write.object.KIND, write.object.metadata.name]
        else:
            actual[write.object.KIND, write.object.metadata.name] = write.object
    after = {name: obj for (_, name), obj in actual.items() if isinstance(obj, ClusterRole)}
    bound = {name: obj for (_, name), obj in actual.items() if isinstance(obj, ClusterRoleBinding)}
    assert list(reconcile(after.values(), bound.values())) == []
    return after, bound


FIRST_ROLES, FIRST_BINDINGS = settled((), ())


def test_new_cluster_has_all_default_and_aggregated_roles() -> None:
    assert all(isinstance(write, Create) for write in reconcile((), ()))
    assert FIRST_ROLES.keys() >= {role.metadata.name for role in ROLES}
    assert {cluster_role_binding.role_ref.name for cluster_role_binding in BINDINGS} <= FIRST_ROLES.keys()
    admin, edit, view = (FIRST_ROLES[name].rules for name in ("admin", "edit", "view"))
    assert not rules_not_covered(admin, edit)
    assert not rules_not_covered(edit, view)
    assert rules_not_covered(view, edit)
    assert rules_not_covered(edit, admin)
    assert not rules_not_covered(view, [PODS])
    assert rules_not_covered(view, [SECRETS])
    assert not rules_not_covered(edit, [SECRETS])


def test_default_roles_and_bindings_are_valid() -> None:
    for obj in (*FIRST_ROLES.values(), *FIRST_BINDINGS.values()):
        assert list(BY_KIND[obj.KIND].rules.validate(obj)) == []


def test_missing_default_rules_are_restored_and_added_ones_kept() -> None:
    role, binding = FIRST_ROLES["system:node-proxier"], FIRST_BINDINGS["system:node-proxier"]
    eve = Subject(kind="User", name="eve")
    mine = with_metadata(replace(role, rules=(SECRETS, *role.rules[1:])), labels={"mine": "1"})
    roles = {**FIRST_ROLES, "system:node-proxier": mine}
    bindings = {**FIRST_BINDINGS, "system:node-proxier": replace(binding, subjects=(eve,))}
    del roles["system:kube-scheduler"]
    after, bound = settled(roles.values(), bindings.values())
    mended = after["system:node-proxier"]
    assert not rules_not_covered(mended.rules, (*role.rules, SECRETS))
    assert mended.metadata.labels == {**role.metadata.labels, "mine": "1"}
    assert bound["system:node-proxier"].subjects == (eve, *binding.subjects)
    assert after["system:kube-scheduler"] == FIRST_ROLES["system:kube-scheduler"]


def test_role_with_autoupdate_false_is_not_changed() -> None:
    name, marks = "system:discovery", {AUTO_UPDATE: "false"}
    role, binding = replace(FIRST_ROLES[name], rules=()), replace(FIRST_BINDINGS[name], subjects=())
    roles = {**FIRST_ROLES, name: with_metadata(role, annotations=marks)}
    bindings = {**FIRST_BINDINGS, name: with_metadata(binding, annotations=marks)}
    assert list(reconcile(roles.values(), bindings.values())) == []
    roles[name], bindings[name] = role, binding
    assert {type(action) for action in reconcile(roles.values(), bindings.values())} == {Update}


def test_self_provisioning_decides_the_default_subject_of_its_binding() -> None:
    name, eve = "self-provisioners", Subject(kind="User", api_group="rbac.authorization.k8s.io", name="eve")
    on = FIRST_BINDINGS[name]
    assert [subject.name for subject in on.subjects] == ["system:authenticated:oauth"]

    def written(binding: ClusterRoleBinding | None, *, self_provisioning: bool) -> list[ClusterRoleBinding]:
        others = {key: each for key, each in FIRST_BINDINGS.items() if key != name}
        bindings = [*others.values(), *([binding] if binding is not None else [])]
        writes = reconcile(FIRST_ROLES.values(), bindings, self_provisioning=self_provisioning)
        return [write.object for write in writes if isinstance(write.object, ClusterRoleBinding)]

    (created,) = written(None, self_provisioning=False)
    assert created.subjects == ()
    assert written(created, self_provisioning=False) == []
    assert [binding.subjects for binding in written(created, self_provisioning=True)] == [on.subjects]
    with_eve = replace(on, subjects=(*on.subjects, eve))
    assert [binding.subjects for binding in written(with_eve, self_provisioning=False)] == [(eve,)]
    by_hand = with_metadata(with_eve, annotations={AUTO_UPDATE: "false"})
    assert written(by_hand, self_provisioning=False) == []


def test_default_binding_to_another_role_is_replaced() -> None:
    other = replace(FIRST_BINDINGS["basic-users"], role_ref=RoleRef(kind="ClusterRole", name="cluster-admin"))
    writes = list(reconcile(FIRST_ROLES.values(), {**FIRST_BINDINGS, "basic-users": other}.values()))
    assert [type(write) for write in writes] == [ForceDelete, Create]


def test_aggregated_role_follows_its_parts() -> None:
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    part = ClusterRole(metadata=ObjectMeta(name="mine", labels=labels), rules=(SECRETS,))
    after, _ = settled({**FIRST_ROLES, "mine": part}.values(), FIRST_BINDINGS.values())
    for name in ("view", "edit", "admin"):
        assert not rules_not_covered(after[name].rules, [SECRETS])
    del after["mine"]
    again, _ = settled(after.values(), FIRST_BINDINGS.values())
    assert again == FIRST_ROLES


def test_mutually_aggregated_roles_converge() -> None:
    def ring(name: str, of: str) -> ClusterRole:
        rule = AggregationRule(cluster_role_selectors=(LabelSelector(match_labels={"part": of}),))
        return ClusterRole(metadata=ObjectMeta(name=name, labels={"part": name}), aggregation_rule=rule)

    seed = ClusterRole(metadata=ObjectMeta(name="seed", labels={"part": "b"}), rules=(PODS,))
    rows = {"a": ring("a", "b"), "b": ring("b", "a"), "seed": seed}
    after, _ = settled({**FIRST_ROLES, **rows}.values(), FIRST_BINDINGS.values())
    assert after["a"].rules == after["b"].rules == (PODS,)


# --- giving away ------------------------------------------------------------------------------------------------------

BOB = User("bob", frozenset(("system:authenticated", "dev")))
ROLE = BY_PATH["rbac.authorization.k8s.io", "v1", "clusterroles"]
BINDING = BY_PATH["rbac.authorization.k8s.io", "v1", "rolebindings"]


def giver(*may: Attributes, held: tuple[PolicyRule, ...] = (PODS,), user: User = BOB) -> rbac.Requester:
    return rbac.Requester(
        user,
        is_allowed=lambda attributes: attributes in may,
        rules_for=lambda namespace: held,
        role_rules=lambda reference, namespace: (PODS, SECRETS) if reference.name == "both" else None,
    )


def role(*rules: PolicyRule, gathers: bool = False) -> ClusterRole:
    selectors = (LabelSelector(match_labels={"a": "b"}),) if gathers else ()
    aggregation = AggregationRule(cluster_role_selectors=selectors) if gathers else None
    return ClusterRole(metadata=ObjectMeta(name="r"), rules=rules, aggregation_rule=aggregation)


def test_role_may_grant_only_its_writers_permissions() -> None:
    rbac.check_escalation(ROLE, role(PODS), None, giver())
    with pytest.raises(StatusError) as refused:
        rbac.check_escalation(ROLE, role(PODS, SECRETS), None, giver())
    assert refused.value.status.code == 403
    assert refused.value.status.message == (
        'clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "bob" '
        '(groups=["dev" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )
    rbac.check_escalation(ROLE, role(SECRETS), None, giver(user=User("root", frozenset(("system:masters",)))))
    group = "rbac.authorization.k8s.io"
    rbac.check_escalation(ROLE, role(SECRETS), None, giver(Attributes("escalate", group, "clusterroles")))
    changed = Attributes("escalate", group, "clusterroles", name="r")
    rbac.check_escalation(ROLE, role(SECRETS), role(), giver(changed))
    with pytest.raises(StatusError):
        rbac.check_escalation(ROLE, role(SECRETS), None, giver(changed))


def test_escalation_check_has_a_limit() -> None:
    """A user with many rules could hold the master with one request."""
    many = tuple(f"x{number}" for number in range(100))
    held = tuple(PolicyRule(verbs=("get",), api_groups=("",), resources=(name,)) for name in many)
    wide = PolicyRule(verbs=many, api_groups=many, resources=("pods",))
    with pytest.raises(StatusError, match="too many rules to compare"):
        rbac.check_escalation(ROLE, role(wide), None, giver(held=held))
    rbac.check_escalation(ROLE, role(wide), None, giver(held=(*held, *ALL_RULES)))


def test_aggregation_rule_needs_full_permissions() -> None:
    for new, old in ((role(gathers=True), None), (role(), role(gathers=True))):
        with pytest.raises(StatusError, match="must have cluster-admin privileges to use the aggregationRule"):
            rbac.check_escalation(ROLE, new, old, giver())
        rbac.check_escalation(ROLE, new, old, giver(held=ALL_RULES))


def test_binding_may_grant_only_its_writers_permissions() -> None:
    def bind(name: str) -> RoleBinding:
        reference = RoleRef(api_group="rbac.authorization.k8s.io", kind="ClusterRole", name=name)
        return RoleBinding(metadata=ObjectMeta(name="b", namespace="red"), role_ref=reference)

    rbac.check_escalation(BINDING, bind("both"), None, giver(held=(PODS, SECRETS)))
    with pytest.raises(StatusError, match="not currently held"):
        rbac.check_escalation(BINDING, bind("both"), None, giver())
    allowed = Attributes("bind", "rbac.authorization.k8s.io", "clusterroles", namespace="red", name="both")
    rbac.check_escalation(BINDING, bind("both"), None, giver(allowed))
    with pytest.raises(StatusError, match='"gone" not found'):
        rbac.check_escalation(BINDING, bind("gone"), None, giver())
    ending = with_metadata(bind("both"), finalizers=("a",))
    rbac.check_escalation(BINDING, bind("both"), ending, giver())
    with pytest.raises(StatusError, match="not currently held"):
        rbac.check_escalation(BINDING, with_metadata(bind("both"), labels={"a": "b"}), ending, giver())


# --- asking as somebody else ------------------------------------------------------------------------------------------

AUTHENTICATION = "authentication.k8s.io"


def test_impersonation_replaces_user_and_groups() -> None:
    assert impersonation.parse_impersonation([("Accept", "*/*"), ("Impersonation", "x")]) is None
    parsed = impersonation.parse_impersonation(
        [
            ("Impersonate-User", "eve"),
            ("Impersonate-Group", "dev"),
            ("impersonate-group", "ops"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Extra-Acme.com%2fproject", "one"),
            ("Impersonate-Extra-acme.com%2Fproject", "two"),
        ]
    )
    assert parsed is not None
    extra = (("acme.com/project", ("one", "two")),)
    assert parsed.user == User("eve", frozenset(("dev", "ops", "system:authenticated")), "7", extra)
    assert parsed.required == (
        Attributes("impersonate", "", "users", name="eve"),
        Attributes("impersonate", "", "groups", name="dev"),
        Attributes("impersonate", "", "groups", name="ops"),
        Attributes("impersonate", AUTHENTICATION, "uids", name="7"),
        Attributes("impersonate", AUTHENTICATION, "userextras", "acme.com/project", name="one"),
        Attributes("impersonate", AUTHENTICATION, "userextras", "acme.com/project", name="two"),
    )


def test_impersonation_of_service_account_and_anonymous_sets_their_groups() -> None:
    parsed = impersonation.parse_impersonation([("Impersonate-User", "system:serviceaccount:red:robot")])
    assert parsed is not None
    assert parsed.required == (Attributes("impersonate", "", "serviceaccounts", namespace="red", name="robot"),)
    assert parsed.user.groups == {"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:red"}
    nobody = impersonation.parse_impersonation([("Impersonate-User", "system:anonymous")])
    assert nobody is not None
    assert nobody.user == User()


def test_impersonation_headers_without_a_user_are_rejected() -> None:
    with pytest.raises(StatusError, match="without impersonating a user"):
        impersonation.parse_impersonation([("Impersonate-Group", "system:masters")])
