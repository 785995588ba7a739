"""SCC admission of creates, updates, ephemeral containers and exec, and the IDs of new namespaces."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from api.core.node import Namespace
from api.core.pod import EphemeralContainer, Pod
from api.meta.types import Object, ObjectMeta
from master.admission.plugin import AdmissionRequest, Operation
from master.admission.scc.namespace_ranges import parse_ranges
from master.admission.scc.plugin import NamespaceSecurityAllocation, SecurityContextConstraint
from master.allocators import ALLOCATOR_CURSORS, AllocatorCursor
from master.auth.attributes import AUTHENTICATED, SYSTEM_MASTERS, User
from master.auth.authorization import Authorizer
from master.auth.bootstrap_policy import BINDINGS, ROLES
from master.auth.bootstrap_sccs import BOOTSTRAP_SCCS
from master.errors import StatusError
from master.resources.group_resource import GroupResource
from master.resources.metadata import with_metadata
from master.resources.namespaces import NAMESPACES
from master.resources.pods import PODS
from master.resources.rbac import RBAC_GROUP, ClusterRole, RoleBinding, RoleRef, Subject
from master.resources.scheme import STORED_TYPES
from master.storage.interface import Transaction
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import put
from tests.unit.master.admission.scc.examples import ANNOTATIONS, contexts, pod, secured

EDITOR = User("ann", frozenset((AUTHENTICATED,)))
ADMIN = User("admin", frozenset((SYSTEM_MASTERS, AUTHENTICATED)))
NODE = User("system:node:n1", frozenset(("system:nodes", AUTHENTICATED)))
SCC, SUBJECT, REQUIRED = (
    "openshift.io/scc",
    "security.openshift.io/validated-scc-subject-type",
    "openshift.io/required-scc",
)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStorage]:
    types: dict[GroupResource, type[Object]] = {**STORED_TYPES, ALLOCATOR_CURSORS: AllocatorCursor}
    storage = await SQLiteStorage.open(tmp_path / "store.db", types)
    red = Namespace(metadata=ObjectMeta(name="red", annotations=ANNOTATIONS))
    await storage.write(put(red), *map(put, (*BOOTSTRAP_SCCS, *ROLES, *BINDINGS)))
    yield storage
    await storage.close()


class Admission:
    """The SCC plugin on a storage, for requests of one user; None is a controller."""

    def __init__(self, storage: SQLiteStorage, user: User | None) -> None:
        self._storage = storage
        self._authorizer = Authorizer(storage)
        self._plugin = SecurityContextConstraint(self._authorizer.allows)
        self._user = user

    def _request(self, operation: Operation, old: Pod | None = None, subresource: str = "") -> AdmissionRequest:
        return AdmissionRequest(
            operation=operation,
            resource=PODS,
            now=datetime.now(UTC),
            random_suffix=lambda: "abcde",
            subresource=subresource,
            old=old,
            requester=None if self._user is None else self._authorizer.requester(self._user),
        )

    def create(self, new: Pod) -> Pod:
        created: Pod = self._plugin.mutate(self._request(Operation.CREATE), new, Transaction(self._storage))
        return created

    def update(self, new: Pod, old: Pod, subresource: str = "") -> Pod:
        request = self._request(Operation.UPDATE, old, subresource)
        updated: Pod = self._plugin.mutate(request, new, Transaction(self._storage))
        return updated

    def connect(self, to: Pod, subresource: str = "exec") -> None:
        self._plugin.validate(self._request(Operation.CONNECT, None, subresource), to, Transaction(self._storage))


def binding(role: str, *subjects: Subject) -> RoleBinding:
    reference = RoleRef(api_group=RBAC_GROUP, kind=ClusterRole.KIND, name=role)
    return RoleBinding(
        metadata=ObjectMeta(name=role.rpartition(":")[2], namespace="red"), subjects=subjects, role_ref=reference
    )


def grant(scc: str) -> RoleBinding:
    account = Subject(kind="ServiceAccount", name="default", namespace="red")
    return binding(f"system:openshift:scc:{scc}", account)


def scc_of(created: Pod) -> tuple[str, str]:
    return created.metadata.annotations[SCC], created.metadata.annotations[SUBJECT]


NOT_USABLE_AFTER_RESTRICTED_V2 = (
    "restricted", "nonroot-v2", "nonroot", "hostmount-anyuid", "hostmount-anyuid-v2", "hostnetwork-v2", "hostnetwork",
    "hostaccess", "privileged",
)  # fmt: skip

PRIVILEGED = secured({}, {"privileged": True})


# --- create -----------------------------------------------------------------------------------------------------------


async def test_everybody_gets_restricted_v2_and_administrators_get_anyuid(storage: SQLiteStorage) -> None:
    assert scc_of(Admission(storage, EDITOR).create(pod())) == ("restricted-v2", "user")
    assert scc_of(Admission(storage, ADMIN).create(pod())) == ("anyuid", "user")


async def test_a_controllers_pod_has_the_rights_of_its_service_account_only(storage: SQLiteStorage) -> None:
    controller = Admission(storage, None)
    assert scc_of(controller.create(pod())) == ("restricted-v2", "user")
    with pytest.raises(StatusError, match="Privileged containers are not allowed"):
        controller.create(PRIVILEGED)
    await storage.write(put(grant("privileged")))
    assert scc_of(controller.create(PRIVILEGED)) == ("privileged", "serviceaccount")


async def test_rejection_names_the_field_and_the_least_permissive_scc(storage: SQLiteStorage) -> None:
    with pytest.raises(StatusError) as rejected:
        Admission(storage, EDITOR).create(secured({}, {"runAsUser": 0}))
    status = rejected.value.status
    assert (status.code, status.reason) == (403, "Forbidden")
    assert status.message == (
        'pods "p" is forbidden: unable to validate against any security context constraint: '
        '[provider "anyuid": Forbidden: not usable by user or serviceaccount, provider restricted-v2: '
        ".containers[0].runAsUser: Invalid value: 0: must be in the ranges: [1000680000, 1000689999], "
        + ", ".join(
            f'provider "{name}": Forbidden: not usable by user or serviceaccount'
            for name in NOT_USABLE_AFTER_RESTRICTED_V2
        )
        + ']; the least permissive SCC that admits the pod is "anyuid"'
    )


async def test_all_of_proc_needs_the_rights_of_privileged_containers(storage: SQLiteStorage) -> None:
    unmasked = secured({}, {"procMount": "Unmasked"})
    with pytest.raises(StatusError, match="unmasked paths are not allowed"):
        Admission(storage, EDITOR).create(unmasked)
    assert scc_of(Admission(storage, ADMIN).create(unmasked)) == ("privileged", "user")


async def test_unconfined_app_armor_needs_the_rights_of_privileged_containers(storage: SQLiteStorage) -> None:
    unconfined = {"appArmorProfile": {"type": "Unconfined"}}
    for new in (secured({}, unconfined), secured(unconfined)):
        with pytest.raises(StatusError, match="unconfined AppArmor profiles are not allowed"):
            Admission(storage, EDITOR).create(new)
        assert scc_of(Admission(storage, ADMIN).create(new)) == ("privileged", "user")


SECCOMP_ANNOTATION = {"seccomp.security.alpha.kubernetes.io/pod": "runtime/default"}
UNCONFINED = {"seccompProfile": {"type": "Unconfined"}}


@pytest.mark.parametrize(
    "new",
    [
        pod({"securityContext": UNCONFINED}, annotations=SECCOMP_ANNOTATION),
        pod({}, {"securityContext": UNCONFINED}, annotations=SECCOMP_ANNOTATION),
        pod(
            {"securityContext": UNCONFINED},
            annotations={"container.seccomp.security.alpha.kubernetes.io/a": "runtime/default", **SECCOMP_ANNOTATION},
        ),
    ],
)
async def test_seccomp_annotation_does_not_hide_the_field(storage: SQLiteStorage, new: Pod) -> None:
    with pytest.raises(StatusError, match="unconfined is not an allowed seccomp profile"):
        Admission(storage, EDITOR).create(new)


async def test_rejection_is_short(storage: SQLiteStorage) -> None:
    sysctl = secured({"sysctls": [{"name": "a." + "b" * 1_000_000, "value": "1"}]})
    for new in (sysctl, pod(annotations={REQUIRED: "x" * 250_000})):
        with pytest.raises(StatusError) as rejected:
            Admission(storage, EDITOR).create(new)
        assert len(rejected.value.status.message) < 20_000


async def test_what_a_user_says_about_the_scc_is_replaced(storage: SQLiteStorage) -> None:
    claimed = pod(annotations={SCC: "privileged", SUBJECT: "serviceaccount"})
    assert scc_of(Admission(storage, EDITOR).create(claimed)) == ("restricted-v2", "user")


async def test_required_scc_must_exist_be_usable_and_admit_the_pod(storage: SQLiteStorage) -> None:
    admission = Admission(storage, EDITOR)
    with pytest.raises(StatusError, match=r'failed to retrieve the required SCC "nope": .* "nope" not found'):
        admission.create(pod(annotations={REQUIRED: "nope"}))
    with pytest.raises(StatusError, match='constraint: provider "anyuid": Forbidden: not usable'):
        admission.create(pod(annotations={REQUIRED: "anyuid"}))
    await storage.write(put(grant("anyuid")))
    assert scc_of(admission.create(pod(annotations={REQUIRED: "anyuid"}))) == ("anyuid", "serviceaccount")
    assert scc_of(admission.create(pod(annotations={REQUIRED: "restricted-v2"}))) == ("restricted-v2", "user")


async def test_mirror_pods_of_nodes_stay_as_they_are(storage: SQLiteStorage) -> None:
    assert Admission(storage, NODE).create(PRIVILEGED) == PRIVILEGED


async def test_users_and_groups_of_an_scc_may_use_it(storage: SQLiteStorage) -> None:
    (anyuid,) = (scc for scc in BOOTSTRAP_SCCS if scc.metadata.name == "anyuid")
    for users, groups in ((("ann",), ()), ((), (AUTHENTICATED,)), (("system:serviceaccount:red:default",), ())):
        await storage.write(put(replace(anyuid, users=users, groups=groups)))
        assert scc_of(Admission(storage, EDITOR).create(pod()))[0] == "anyuid"
    await storage.write(put(replace(anyuid, users=("bob", "system:serviceaccount:blue:default"), groups=())))
    assert scc_of(Admission(storage, EDITOR).create(pod()))[0] == "restricted-v2"


async def test_namespace_without_ids_admits_nothing(storage: SQLiteStorage) -> None:
    await storage.write(put(Namespace(metadata=ObjectMeta(name="red"))))
    expected = 'error fetching namespace "red": unable to find annotation openshift.io/sa.scc.uid-range'
    with pytest.raises(StatusError, match=expected):
        Admission(storage, ADMIN).create(pod())


# --- update -----------------------------------------------------------------------------------------------------------


def labelled(old: Pod, **labels: str) -> Pod:
    return with_metadata(old, labels={**old.metadata.labels, **labels})


async def test_update_changes_nothing_and_is_checked_again(storage: SQLiteStorage) -> None:
    editor, admin = Admission(storage, EDITOR), Admission(storage, ADMIN)
    restricted, root = editor.create(pod()), admin.create(pod())
    assert editor.update(labelled(restricted, a="b"), restricted) == labelled(restricted, a="b")
    assert admin.update(labelled(root, a="b"), root) == labelled(root, a="b")
    with pytest.raises(StatusError, match=r"restricted-v2: \.containers\[0\]\.runAsUser: Required value"):
        editor.update(labelled(root, a="b"), root)


async def test_update_that_changes_neither_spec_nor_labels_nor_annotations_is_free(storage: SQLiteStorage) -> None:
    root = Admission(storage, ADMIN).create(pod())
    released = with_metadata(root, finalizers=())
    assert Admission(storage, EDITOR).update(released, root) == released


async def test_update_keeps_what_is_known_about_the_scc(storage: SQLiteStorage) -> None:
    admission = Admission(storage, EDITOR)
    old = admission.create(pod())
    claimed = with_metadata(old, annotations={**old.metadata.annotations, SCC: "privileged"})
    assert admission.update(claimed, old) == old
    assert admission.update(with_metadata(old, annotations={}, labels={"a": "b"}), old).metadata.annotations == {
        SCC: "restricted-v2",
        SUBJECT: "user",
    } | {key: value for key, value in old.metadata.annotations.items() if key in (SCC, SUBJECT)}


async def test_required_scc_cannot_be_changed(storage: SQLiteStorage) -> None:
    admission = Admission(storage, EDITOR)
    old = admission.create(pod())
    new = with_metadata(old, annotations={**old.metadata.annotations, REQUIRED: "restricted-v2"})
    with pytest.raises(StatusError, match="invalid change of required security context constraint annotation"):
        admission.update(new, old)


async def test_an_ephemeral_container_is_completed_and_nothing_else(storage: SQLiteStorage) -> None:
    admission = Admission(storage, EDITOR)
    old = admission.create(pod())
    debug = replace(old, spec=replace(old.spec, ephemeral_containers=(EphemeralContainer(name="d", image="i"),)))
    new = admission.update(debug, old, "ephemeralcontainers")
    assert replace(new, spec=replace(new.spec, ephemeral_containers=())) == old
    context = new.spec.ephemeral_containers[0].security_context
    assert context is not None
    assert (context.run_as_user, context.allow_privilege_escalation) == (1000680000, False)
    privileged = msgspec.convert({"name": "d", "securityContext": {"privileged": True}}, EphemeralContainer)
    debug = replace(old, spec=replace(old.spec, ephemeral_containers=(privileged,)))
    with pytest.raises(StatusError, match="Privileged containers are not allowed"):
        admission.update(debug, old, "ephemeralcontainers")


# --- exec -------------------------------------------------------------------------------------------------------------


async def test_exec_needs_the_rights_that_the_pod_needs(storage: SQLiteStorage) -> None:
    editor, admin = Admission(storage, EDITOR), Admission(storage, ADMIN)
    privileged = admin.create(PRIVILEGED)
    expected = "{} operation is not allowed because the pod's security context exceeds your permissions: unable"
    for subresource in ("exec", "attach"):
        with pytest.raises(StatusError, match=expected.format(subresource)):
            editor.connect(privileged, subresource)
        admin.connect(privileged, subresource)
        editor.connect(editor.create(pod()), subresource)
    editor.connect(privileged, "portforward")


# --- namespaces -------------------------------------------------------------------------------------------------------


def reserve(storage: SQLiteStorage, name: str, transaction: Transaction, annotations: Mapping[str, str]) -> Any:
    request = AdmissionRequest(
        operation=Operation.CREATE, resource=NAMESPACES, now=datetime.now(UTC), random_suffix=lambda: "abcde"
    )
    namespace = Namespace(metadata=ObjectMeta(name=name, annotations=dict(annotations)))
    created = NamespaceSecurityAllocation().reserve(request, namespace, transaction)
    transaction.put(NAMESPACES.group_resource, created)
    return created


async def test_every_new_namespace_gets_a_block_of_its_own(storage: SQLiteStorage) -> None:
    transaction = Transaction(storage)
    created = [reserve(storage, f"n{number}", transaction, {}) for number in range(200)]
    ranges = [parse_ranges(namespace.metadata.annotations) for namespace in created]
    lows = sorted(each.uids.min for each in ranges)
    assert all(high - low >= 10_000 for low, high in itertools.pairwise(lows))
    assert 1000680000 not in lows, "red has it"
    assert len({each.level for each in ranges}) == 200
    assert "s0:c26,c15" not in {each.level for each in ranges}


async def test_a_block_is_not_given_again_at_once(storage: SQLiteStorage) -> None:
    first = Transaction(storage)
    given = reserve(storage, "n1", first, {})
    await storage.write(*(change for change in first.changes if change.key.name != "n1"))
    again = reserve(storage, "n1", Transaction(storage), {})
    assert given.metadata.annotations != again.metadata.annotations


async def test_a_namespace_keeps_the_ids_that_it_is_created_with(storage: SQLiteStorage) -> None:
    own = {"openshift.io/sa.scc.uid-range": "5000/100"}
    assert reserve(storage, "n1", Transaction(storage), own).metadata.annotations == own
    other = {"openshift.io/sa.scc.mcs": "s0:c9,c8", "a": "b"}
    created = reserve(storage, "n2", Transaction(storage), other)
    assert {key: created.metadata.annotations[key] for key in other} == other
    assert parse_ranges(created.metadata.annotations).uids.min == 1_000_000_000


async def test_filled_contexts_are_those_of_the_namespace(storage: SQLiteStorage) -> None:
    created = Admission(storage, EDITOR).create(pod())
    pod_context, container = contexts(created)
    assert (pod_context["fsGroup"], container["runAsUser"]) == (1000680000, 1000680000)
