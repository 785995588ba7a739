"""Pod Security labels of namespaces follow the SCCs that their service accounts may use."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from api.core.node import Namespace
from api.meta.types import O, Object
from master.admission.pod_security.scc_level import scc_level
from master.admission.scc.namespace_ranges import MCS_ANNOTATION, UID_RANGE_ANNOTATION
from master.auth.bootstrap_policy import BINDINGS, ROLES
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.controllers.actions import Failed, Update
from master.controllers.context import Lister
from master.controllers.pod_security_labels import MAX_WORK, UPDATE_WORK, PodSecurityLabels
from master.registry.managed_fields import APPLY, UPDATE, FieldManager, managers_in, track_update, with_managed_fields
from master.registry.pod_security_labels import CONTROLLER_NAME, LEVEL_ANNOTATION, SYNC_LABEL, with_level
from master.resources.configuration import ServiceAccount
from master.resources.metadata import with_metadata
from master.resources.namespaces import NAMESPACES
from master.resources.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject
from master.resources.security_context_constraints import IDRange, SecurityContextConstraints
from master.storage.interface import Record, WatchEvent
from tests.testbed.apiserver.changes import key_of
from tests.unit.master.examples import meta, namespace

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RANGES = {UID_RANGE_ANNOTATION: "1000000000/10000", MCS_ANNOTATION: "s0:c1,c0"}
WARN, AUDIT, ENFORCE = (f"pod-security.kubernetes.io/{mode}" for mode in ("warn", "audit", "enforce"))
SCCS = {scc.metadata.name: scc for scc in BOOTSTRAP_SCCS}
UIDS = IDRange(min=1_000_000_000, max=1_000_009_999)


def labels_of(level: str) -> dict[str, str]:
    return {WARN: level, f"{WARN}-version": "latest", AUDIT: level, f"{AUDIT}-version": "latest"}


# --- the level of an SCC ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "names"),
    [
        ("restricted", "restricted-v2 nonroot-v2"),
        ("baseline", "restricted nonroot anyuid"),
        (
            "privileged",
            "hostmount-anyuid hostmount-anyuid-v2 hostnetwork hostnetwork-v2 hostaccess privileged",
        ),
    ],
)
def test_default_sccs_have_the_level_that_openshift_gives_them(level: str, names: str) -> None:
    assert {scc_level(SCCS[name], UIDS) for name in names.split()} == {level}


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"allow_host_pid": True}, "privileged"),
        ({"allow_host_ipc": True}, "privileged"),
        ({"allow_host_ports": True}, "privileged"),
        ({"volumes": ("*",)}, "privileged"),
        ({"allowed_capabilities": ("NET_ADMIN",)}, "privileged"),
        ({"allowed_capabilities": ("*",)}, "privileged"),
        ({"allowed_capabilities": ("CHOWN",)}, "baseline"),
        ({"required_drop_capabilities": ("KILL",)}, "baseline"),
        ({"allowed_unsafe_sysctls": ("kernel.msg*",)}, "privileged"),
        ({"allowed_unsafe_sysctls": ("net.ipv4.tcp_syncookies",)}, "restricted"),
        ({"seccomp_profiles": ("*",)}, "privileged"),
        ({"seccomp_profiles": ("localhost/a.json", "docker/default")}, "restricted"),
        ({"seccomp_profiles": None}, "baseline"),
        ({"volumes": ("nfs",)}, "baseline"),
        ({"volumes": ("none",)}, "restricted"),
        ({"allow_privilege_escalation": None}, "baseline"),
    ],
)
def test_each_field_of_an_scc_raises_its_level(changes: Mapping[str, Any], level: str) -> None:
    assert scc_level(replace(SCCS["restricted-v2"], **changes), UIDS) == level


def test_range_that_begins_with_root_is_baseline() -> None:
    assert scc_level(SCCS["restricted-v2"], IDRange(min=0, max=9)) == "baseline"


# --- the labels of one namespace --------------------------------------------------------------------------------------


def set_by(old: Namespace, user: str, labels: Mapping[str, str]) -> Namespace:
    """Return the namespace after an update of its labels by a client."""
    new = with_metadata(old, labels=dict(labels))
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    manager = FieldManager(user, UPDATE, "", "v1", "2026-01-01T00:00:00Z", frozenset())
    managers = track_update(before, after, NAMESPACES.merge_schema, managers_in(before), manager)
    changed: Namespace = with_managed_fields(new, managers)
    return changed


RED = namespace("red", annotations=RANGES)


def test_namespace_without_labels_gets_warnings_and_audit_of_its_level() -> None:
    labelled = with_level(RED, "restricted", NOW)
    assert labelled.metadata.labels == labels_of("restricted")
    assert labelled.metadata.annotations == {**RANGES, LEVEL_ANNOTATION: "restricted"}
    managers = {each.manager: each.operation for each in managers_in(msgspec.to_builtins(labelled))}
    assert managers == {"before-first-apply": UPDATE, CONTROLLER_NAME: APPLY}
    assert with_level(labelled, "restricted", NOW) is labelled
    assert with_level(labelled, "baseline", NOW).metadata.labels == labels_of("baseline")


def test_labels_of_users_stay() -> None:
    mine = with_metadata(RED, labels={WARN: "privileged", ENFORCE: "baseline"})
    expected = {**labels_of("restricted"), WARN: "privileged", ENFORCE: "baseline"}
    assert with_level(mine, "restricted", NOW).metadata.labels == expected
    labelled = with_level(RED, "restricted", NOW)
    changed = set_by(labelled, "kubectl-label", {**labelled.metadata.labels, AUDIT: "privileged"})
    for level in ("restricted", "baseline"):
        assert with_level(changed, level, NOW).metadata.labels == {**labels_of(level), AUDIT: "privileged"}
    removed = {key: value for key, value in labelled.metadata.labels.items() if key != AUDIT}
    assert with_level(set_by(labelled, "kubectl-label", removed), "restricted", NOW).metadata.labels == labels_of(
        "restricted"
    )


def test_opting_out_and_in() -> None:
    def synchronized(name: str, labels: Mapping[str, str]) -> bool:
        before = namespace(name, annotations=RANGES, labels=dict(labels))
        return with_level(before, "baseline", NOW) is not before

    mine = labels_of("privileged")
    assert synchronized("red", {})
    assert not synchronized("red", {SYNC_LABEL: "false"})
    assert not synchronized("red", mine)
    assert synchronized("red", {**mine, SYNC_LABEL: "true"})
    assert not synchronized("openshift-logging", {})
    assert synchronized("openshift-logging", {SYNC_LABEL: "true"})
    for name in ("kube-node-lease", "openshift"):
        assert not synchronized(name, {SYNC_LABEL: "true"})


def test_system_namespaces_are_privileged_whatever_users_set() -> None:
    system = with_metadata(namespace("kube-system"), labels={ENFORCE: "restricted", "a": "b"})
    forced = with_level(system, "restricted", NOW)
    assert forced.metadata.labels == {**dict.fromkeys((ENFORCE, WARN, AUDIT), "privileged"), "a": "b"}
    assert with_level(forced, None, NOW) is forced


# --- the controller ---------------------------------------------------------------------------------------------------


class FakeLister(Lister):
    """Objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Any] = {}

    @property
    def now(self) -> datetime.datetime:
        return NOW

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]:
        return [
            obj for (found, where, _), obj in self.objects.items() if found == kind.KIND and namespace in ("", where)
        ]

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        return self.objects.get((kind.KIND, namespace, name))


class Cluster:
    """The controller on a cluster with the default roles and SCCs. `passes` counts passes that had work."""

    def __init__(self, *objects: Object, uses_sccs: bool = True) -> None:
        self.lister = FakeLister()
        self.controller = PodSecurityLabels(uses_sccs=uses_sccs)
        for obj in (*BOOTSTRAP_SCCS, *ROLES, *BINDINGS, *objects):
            self.put(obj)
        self.settle()

    def put(self, obj: Object) -> None:
        key = (obj.KIND, obj.metadata.namespace, obj.metadata.name)
        old = self.lister.objects.get(key)
        self.lister.objects[key] = obj
        self._notify("ADDED" if old is None else "MODIFIED", obj, old)

    def delete(self, kind: type[Object], name: str, where: str = "") -> None:
        obj = self.lister.objects.pop((kind.KIND, where, name))
        self._notify("DELETED", obj, obj)

    def _notify(self, event_type: str, new: Object, old: Object | None) -> None:
        def record(obj: Object) -> Record:
            return Record(key_of(obj), 1, b"", type(obj), obj)

        self.controller.observe(WatchEvent(event_type, record(new), None if old is None else record(old)))

    def settle(self) -> int:
        """Run passes until nothing is pending, and return their number."""
        passes = 0
        while passes == 0 or self.controller.has_pending():
            passes += 1
            assert passes < 1000
            for action in self.controller.reconcile(self.lister):
                assert isinstance(action, Update)
                self.put(action.object)
        return passes

    def level(self, name: str) -> str:
        labels = self.lister.objects[("Namespace", "", name)].metadata.labels
        assert labels.get(WARN) == labels.get(AUDIT)
        return str(labels.get(WARN, ""))


def project(name: str) -> tuple[Object, ...]:
    """Return a namespace with a service account."""
    account = ServiceAccount(metadata=meta("default", namespace=name))
    return namespace(name, annotations=RANGES), account


def bind(where: str, role: str, *subjects: Subject, kind: str = "ClusterRole", name: str = "b") -> RoleBinding:
    return RoleBinding(metadata=meta(name, namespace=where), subjects=subjects, role_ref=RoleRef(kind=kind, name=role))


DEFAULT = Subject(kind="ServiceAccount", name="default")
ANYUID, PRIVILEGED_SCC = "system:openshift:scc:anyuid", "system:openshift:scc:privileged"


def test_namespace_has_the_level_of_what_everybody_may_use() -> None:
    cluster = Cluster(*project("red"))
    assert cluster.level("red") == "restricted"
    cluster.put(namespace("blue", annotations=RANGES))
    cluster.settle()
    assert cluster.level("blue") == "restricted"


def test_role_binding_changes_the_level_of_its_namespace_alone() -> None:
    cluster = Cluster(*project("red"), *project("blue"))
    cluster.put(bind("red", ANYUID, DEFAULT))
    assert cluster.settle() == 2
    assert (cluster.level("red"), cluster.level("blue")) == ("baseline", "restricted")
    cluster.put(bind("red", PRIVILEGED_SCC, Subject(kind="Group", name="system:serviceaccounts:red"), name="c"))
    cluster.settle()
    assert cluster.level("red") == "privileged"
    cluster.delete(RoleBinding, "c", "red")
    cluster.delete(RoleBinding, "b", "red")
    cluster.settle()
    assert cluster.level("red") == "restricted"


@pytest.mark.parametrize(
    "subject",
    [
        Subject(kind="User", name="ann"),
        Subject(kind="Group", name="system:masters"),
        Subject(kind="ServiceAccount", name="default", namespace="blue"),
        Subject(kind="ServiceAccount", name="absent"),
        Subject(kind="Group", name="system:serviceaccounts:blue"),
    ],
)
def test_subjects_that_are_no_account_of_the_namespace_change_nothing(subject: Subject) -> None:
    cluster = Cluster(*project("red"), *project("blue"))
    cluster.put(bind("red", PRIVILEGED_SCC, subject))
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("restricted", "restricted")


def test_account_that_is_created_after_its_binding_counts() -> None:
    cluster = Cluster(*project("red"), bind("red", ANYUID, Subject(kind="ServiceAccount", name="db")))
    assert cluster.level("red") == "restricted"
    cluster.put(ServiceAccount(metadata=meta("db", namespace="red")))
    cluster.settle()
    assert cluster.level("red") == "baseline"
    cluster.delete(ServiceAccount, "db", "red")
    cluster.settle()
    assert cluster.level("red") == "restricted"


def test_role_that_grants_another_scc_later_counts() -> None:
    cluster = Cluster(*project("red"), *project("blue"), bind("red", "own", DEFAULT, kind="Role"))
    rule = PolicyRule(
        verbs=("use",),
        api_groups=("security.openshift.io",),
        resources=("securitycontextconstraints",),
        resource_names=("privileged",),
    )
    cluster.put(Role(metadata=meta("own", namespace="red"), rules=(rule,)))
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("privileged", "restricted")
    cluster.put(bind("blue", "shared", DEFAULT))
    cluster.put(ClusterRole(metadata=meta("shared"), rules=(replace(rule, resource_names=("anyuid",)),)))
    cluster.delete(Role, "own", "red")
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("restricted", "baseline")
    cluster.put(ClusterRole(metadata=meta("shared"), rules=(replace(rule, resource_names=()),)))
    cluster.settle()
    assert cluster.level("blue") == "privileged"


def test_cluster_role_binding_concerns_the_namespaces_of_its_subjects() -> None:
    cluster = Cluster(*project("red"), *project("blue"))
    binding = ClusterRoleBinding(
        metadata=meta("b"),
        subjects=(Subject(kind="ServiceAccount", name="default", namespace="red"),),
        role_ref=RoleRef(kind="ClusterRole", name=ANYUID),
    )
    cluster.put(binding)
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("baseline", "restricted")
    cluster.put(replace(binding, subjects=(Subject(kind="Group", name="system:serviceaccounts"),)))
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("baseline", "baseline")
    cluster.delete(ClusterRoleBinding, "b")
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("restricted", "restricted")


def test_scc_changes_the_level_of_those_who_may_use_it() -> None:
    cluster = Cluster(*project("red"), *project("blue"), bind("red", ANYUID, DEFAULT))
    cluster.put(replace(SCCS["anyuid"], allow_host_network=True))
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("privileged", "restricted")
    cluster.put(replace(SCCS["hostaccess"], users=("system:serviceaccount:blue:default",)))
    cluster.settle()
    assert cluster.level("blue") == "privileged"
    cluster.put(SCCS["hostaccess"])
    cluster.delete(SecurityContextConstraints, "anyuid")
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("restricted", "restricted")


def test_without_sccs_or_ids_nothing_is_labelled() -> None:
    assert Cluster(*project("red"), uses_sccs=False).level("red") == ""
    assert Cluster(namespace("red")).level("red") == ""
    deleted = namespace("red", annotations=RANGES, deletion_timestamp="2026-01-01T00:00:00Z")
    assert Cluster(deleted).level("red") == ""


def test_a_pass_has_bounded_work_and_a_change_concerns_one_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number:03d}" for number in range(200)]
    cluster = Cluster(*(obj for name in names for obj in project(name)))
    assert {cluster.level(name) for name in names} == {"restricted"}
    evaluated: list[str] = []
    sync = PodSecurityLabels._sync

    def counted(self: PodSecurityLabels, namespace: Namespace, **rest: Any) -> Any:
        evaluated.append(namespace.metadata.name)
        return sync(self, namespace, **rest)

    monkeypatch.setattr(PodSecurityLabels, "_sync", counted)
    cluster.put(bind("p007", ANYUID, DEFAULT))
    cluster.settle()
    assert set(evaluated) == {"p007"}
    evaluated.clear()
    cluster.put(replace(SCCS["anyuid"], allow_host_network=True))
    cluster.settle()
    assert set(evaluated) == {"p007"}
    evaluated.clear()
    cluster.put(replace(SCCS["restricted-v2"], allow_host_network=True))
    assert cluster.settle() > len(names) * UPDATE_WORK / MAX_WORK
    assert set(evaluated) == set(names)


def test_failing_namespace_is_set_aside_and_tried_again() -> None:
    cluster = Cluster(*project("red"), *project("blue"))
    cluster.lister.objects[("Namespace", "", "red")] = with_metadata(RED, labels=7)
    cluster.put(replace(SCCS["restricted-v2"], allow_privilege_escalation=True))
    actions = list(cluster.controller.reconcile(cluster.lister))
    assert [type(action) for action in actions] == [Failed, Update]
    cluster.put(actions[1].object)  # type: ignore[union-attr]
    assert [type(action) for action in cluster.controller.reconcile(cluster.lister)] == [Failed]
    assert not cluster.controller.has_pending()
    cluster.lister.objects[("Namespace", "", "red")] = RED
    cluster.settle()
    assert (cluster.level("red"), cluster.level("blue")) == ("baseline", "baseline")


GRANTS = st.sampled_from([ANYUID, PRIVILEGED_SCC, "system:openshift:scc:nonroot", "edit"])
CHANGES = st.lists(st.tuples(st.sampled_from("abc"), GRANTS, st.booleans()), max_size=8)


@settings(max_examples=30)
@given(CHANGES)
def test_events_lead_to_the_same_labels_as_a_fresh_start(changes: list[tuple[str, str, bool]]) -> None:
    objects = [obj for name in "abc" for obj in project(name)]
    cluster = Cluster(*objects)
    for where, role, in_cluster in changes:
        subject = replace(DEFAULT, namespace=where)
        key = "ClusterRoleBinding" if in_cluster else "RoleBinding"
        name = f"{where}-{role}"
        if (key, "" if in_cluster else where, name) in cluster.lister.objects:
            cluster.delete(ClusterRoleBinding if in_cluster else RoleBinding, name, "" if in_cluster else where)
        elif in_cluster:
            reference = RoleRef(kind="ClusterRole", name=role)
            cluster.put(ClusterRoleBinding(metadata=meta(name), subjects=(subject,), role_ref=reference))
        else:
            cluster.put(bind(where, role, subject, name=name))
        if role != "edit":
            cluster.settle()
    cluster.settle()
    fresh = Cluster(*objects, *(obj for obj in cluster.lister.objects.values() if "Binding" in obj.KIND))
    assert {name: cluster.level(name) for name in "abc"} == {name: fresh.level(name) for name in "abc"}
