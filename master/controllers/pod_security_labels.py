"""Pod Security labels of namespaces: the level that the SCCs of a namespace's service accounts amount to. Pure.

Source: the label synchronization of OpenShift's cluster-policy-controller. A new namespace has its labels from the
beginning (`master/registry/creation.py`). This controller follows changes of roles, bindings, SCCs and labels. Only
namespaces that events concern are reconciled, in passes of bounded work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from api.core.node import Namespace
from master.auth.attributes import AUTHENTICATED, SERVICE_ACCOUNT_USER_PREFIX, service_account_groups
from master.auth.rbac import subject_key
from master.controllers.actions import Action, Failed, Update, isolate_errors
from master.controllers.context import Lister
from master.registry.pod_security_labels import namespace_level, with_level
from master.resources.configuration import ServiceAccount
from master.resources.rbac import (
    ClusterRole,
    ClusterRoleBinding,
    PolicyRule,
    Role,
    RoleBinding,
    RoleRef,
)
from master.resources.security_context_constraints import (
    ANY,
    SCC_PLURAL,
    SECURITY_GROUP,
    SecurityContextConstraints,
)
from master.storage.interface import WatchEvent

# --- SCCs that service accounts may use -------------------------------------------------------------------------------

SCCNames = frozenset[str]
"""Names of SCCs; ANY stands for all."""

NO_SCCS: SCCNames = frozenset()

Granted = Callable[[RoleRef, str], SCCNames]
"""Return the SCCs that a role lets its subjects use; the namespace is that of the binding."""


def sccs_in_rules(rules: Iterable[PolicyRule]) -> SCCNames:
    """Return the SCCs that the rules of a role let its subjects use."""
    names = set[str]()
    for rule in rules:
        if (
            not {"use", ANY}.isdisjoint(rule.verbs)
            and not {SECURITY_GROUP, ANY}.isdisjoint(rule.api_groups)
            and not {SCC_PLURAL, ANY}.isdisjoint(rule.resources)
        ):
            names.update(rule.resource_names or (ANY,))
    return frozenset(names)


class ClusterAccess(NamedTuple):
    """The SCCs that service accounts may use in the whole cluster: by group, and by namespace and account."""

    by_group: Mapping[str, SCCNames]
    by_account: Mapping[str, Mapping[str, SCCNames]]


EVERYBODY = frozenset((AUTHENTICATED, service_account_groups("")[0]))
"""The groups of all service accounts."""


def cluster_access(
    sccs: Iterable[SecurityContextConstraints], bindings: Iterable[ClusterRoleBinding], granted: Granted
) -> ClusterAccess:
    """Return who may use which SCCs by the lists of SCCs and by ClusterRoleBindings. People are left out."""
    by_group = dict[str, SCCNames]()
    by_account = dict[str, dict[str, SCCNames]]()

    def add(kind: str, name: str, names: SCCNames) -> None:
        if kind == "Group" and (name in EVERYBODY or name.startswith(service_account_groups("")[1])):
            by_group[name] = by_group.get(name, NO_SCCS) | names
        elif kind == "User" and name.startswith(SERVICE_ACCOUNT_USER_PREFIX):
            namespace, _, account = name.removeprefix(SERVICE_ACCOUNT_USER_PREFIX).partition(":")
            accounts = by_account.setdefault(namespace, {})
            accounts[account] = accounts.get(account, NO_SCCS) | names

    for scc in sccs:
        names = frozenset((scc.metadata.name,))
        for user in scc.users:
            add("User", user, names)
        for group in scc.groups:
            add("Group", group, names)
    for binding in bindings:
        if names := granted(binding.role_ref, ""):
            for subject in binding.subjects:
                add(*subject_key(subject, ""), names)
    return ClusterAccess(by_group, by_account)


def concerned_namespaces(before: ClusterAccess, after: ClusterAccess) -> frozenset[str] | None:
    """Return the namespaces whose service accounts a difference concerns; None for all of them."""
    groups = _changed_keys(before.by_group, after.by_group)
    if not EVERYBODY.isdisjoint(groups):
        return None
    prefix = service_account_groups("")[1]
    return frozenset(group.removeprefix(prefix) for group in groups) | _changed_keys(
        before.by_account, after.by_account
    )


def _changed_keys(before: Mapping[str, object], after: Mapping[str, object]) -> frozenset[str]:
    return frozenset(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def usable_sccs(
    namespace: str,
    access: ClusterAccess,
    bindings: Iterable[RoleBinding],
    granted: Granted,
    exists: Callable[[str], bool],
) -> SCCNames:
    """Return the SCCs that the service accounts of a namespace may use. `exists` tells whether it has an account.

    The subjects of a binding are read only if its role gives more than all accounts have.
    """
    groups = {AUTHENTICATED, *service_account_groups(namespace)}
    names = NO_SCCS.union(*(access.by_group.get(group, NO_SCCS) for group in groups))
    for account, more in access.by_account.get(namespace, {}).items():
        if not more <= names and exists(account):
            names |= more
    prefix = f"{SERVICE_ACCOUNT_USER_PREFIX}{namespace}:"
    for binding in bindings:
        more = granted(binding.role_ref, namespace)
        if more <= names:
            continue
        for kind, name in (subject_key(subject, namespace) for subject in binding.subjects):
            is_account = kind == "User" and name.startswith(prefix) and exists(name.removeprefix(prefix))
            if is_account or (kind == "Group" and name in groups):
                names |= more
                break
    return names


# --- the controller ---------------------------------------------------------------------------------------------------

OBSERVED_KINDS = (
    "Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
    "SecurityContextConstraints",
)  # fmt: skip

MAX_WORK, UPDATE_WORK, NAMESPACE_WORK = 1000, 25, 2
"""The work of one pass, about 10 ms, and that of an update and of a namespace. That of a RoleBinding is 1."""


class PodSecurityLabels:
    """The controller. It keeps what roles and namespaces allow, and the namespaces to reconcile after events.

    It observes every event of OBSERVED_KINDS before the first pass and after. Without SCCs, all namespaces but those
    of the system keep their labels.
    """

    def __init__(self, *, uses_sccs: bool) -> None:
        self._uses_sccs = uses_sccs
        self._is_initialized = False
        self._pending: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._granted: dict[tuple[str, str, str], SCCNames] = {}
        """(kind, namespace, name) of a role → the SCCs that it grants; roles that grant none are missing."""
        self._usable: dict[str, SCCNames] = {}
        """Namespace → the SCCs that its service accounts may use."""
        self._access = ClusterAccess({}, {})
        self._has_other_access = False
        self._changed_roles: set[str] = set()
        self._changed_sccs: set[str] = set()

    def has_pending(self) -> bool:
        """Return whether another pass is due."""
        return bool(self._pending or self._has_other_access or self._changed_roles or self._changed_sccs)

    def observe(self, event: WatchEvent) -> None:
        """Record which namespaces an event may concern."""
        if not self._is_initialized:
            return
        new = event.record.object
        old = event.previous.object if event.previous is not None else None
        is_deleted = event.type == "DELETED"
        if isinstance(new, Namespace):
            self._pending[new.metadata.name] = None
        elif isinstance(new, ServiceAccount):
            if event.type != "MODIFIED":
                self._pending[new.metadata.namespace] = None
        elif isinstance(new, RoleBinding):
            if any(self.granted(each.role_ref, each.metadata.namespace) for each in (new, old) if each is not None):
                self._pending[new.metadata.namespace] = None
        elif isinstance(new, Role | ClusterRole):
            self._observe_role(new, is_deleted=is_deleted)
        elif isinstance(new, ClusterRoleBinding):
            self._has_other_access = True
        elif isinstance(new, SecurityContextConstraints):
            self._changed_sccs.add(new.metadata.name)

    def _observe_role(self, role: Role | ClusterRole, *, is_deleted: bool = False) -> None:
        """Record what a role grants, and whether it is something else than before."""
        key = (role.KIND, role.metadata.namespace, role.metadata.name)
        after = NO_SCCS if is_deleted else sccs_in_rules(role.rules)
        if after == self._granted.get(key, NO_SCCS):
            return
        if after:
            self._granted[key] = after
        else:
            del self._granted[key]
        if isinstance(role, Role):
            self._pending[role.metadata.namespace] = None
        else:
            self._changed_roles.add(role.metadata.name)

    def granted(self, reference: RoleRef, namespace: str) -> SCCNames:
        """Return the SCCs that a role lets its subjects use; the namespace is that of the binding."""
        is_role = reference.kind == Role.KIND
        return self._granted.get((reference.kind, namespace if is_role else "", reference.name), NO_SCCS)

    def reconcile(self, lister: Lister) -> Iterator[Action]:
        """Yield the updates of pending namespaces, as many as belong in one pass."""
        sccs = lister.list(SecurityContextConstraints)
        self._collect_pending(lister, sccs)
        remaining = MAX_WORK
        for name in tuple(self._pending):
            if remaining <= 0:
                return
            namespace = lister.get(Namespace, name)
            if namespace is None or namespace.metadata.deletion_timestamp:
                self._usable.pop(name, None)
                del self._pending[name]
                continue
            bindings = lister.list(RoleBinding, name)
            remaining -= NAMESPACE_WORK + len(bindings)
            sync = partial(self._sync, sccs=sccs, bindings=bindings, lister=lister)
            actions = tuple(isolate_errors((namespace,), sync))
            if not actions or isinstance(actions[0], Failed):
                del self._pending[name]
                self._failed |= dict.fromkeys([name] if actions else [])
            remaining -= UPDATE_WORK * len(actions)
            yield from actions

    def _collect_pending(self, lister: Lister, sccs: Iterable[SecurityContextConstraints]) -> None:
        """Add the namespaces that changes of cluster roles, of their bindings and of SCCs concern."""
        if not self._is_initialized:
            self._is_initialized = self._has_other_access = True
            for cluster_role in lister.list(ClusterRole):
                self._observe_role(cluster_role)
            for role in lister.list(Role):
                self._observe_role(role)
            self._pending = dict.fromkeys(namespace.metadata.name for namespace in lister.list(Namespace))
        self._pending |= self._failed
        self._failed = {}
        if self._changed_sccs:
            changed = self._changed_sccs
            self._pending |= dict.fromkeys(
                name for name, usable in self._usable.items() if ANY in usable or not changed.isdisjoint(usable)
            )
        if self._changed_roles:
            self._pending |= dict.fromkeys(
                binding.metadata.namespace
                for binding in lister.list(RoleBinding)
                if binding.role_ref.kind == ClusterRole.KIND and binding.role_ref.name in self._changed_roles
            )
        if self._has_other_access or self._changed_roles or self._changed_sccs:
            after = cluster_access(sccs, lister.list(ClusterRoleBinding), self.granted)
            concerned = concerned_namespaces(self._access, after)
            self._pending |= dict.fromkeys(self._usable if concerned is None else concerned)
            self._access = after
        self._has_other_access, self._changed_roles, self._changed_sccs = False, set(), set()

    def _sync(
        self,
        namespace: Namespace,
        sccs: Iterable[SecurityContextConstraints],
        bindings: Iterable[RoleBinding],
        lister: Lister,
    ) -> Iterator[Update]:
        name = namespace.metadata.name
        level = None
        if self._uses_sccs:
            usable = usable_sccs(
                name,
                self._access,
                bindings,
                self.granted,
                lambda account: lister.get(ServiceAccount, account, name) is not None,
            )
            self._usable[name] = usable
            level = namespace_level(namespace, usable, sccs)
        after = with_level(namespace, level, lister.now)
        if after is not namespace:
            yield Update(after, namespace)
