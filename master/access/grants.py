"""Who has which roles: an index over the bindings in the store, kept by its watches."""

from __future__ import annotations

from collections.abc import Iterator

from master.access.authorize import User
from master.access.rbac import Grant, holder, holders
from master.kinds.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject
from master.store.records import Event, Key
from master.store.store import Store

Binding = ClusterRoleBinding | RoleBinding


class Grants:
    """What is on disk: a binding counts from when its writer has been answered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[str, str], dict[str, dict[str, tuple[Binding, Subject]]]] = {}
        """(User or Group, name) → namespace, empty for the cluster → name of the binding."""
        for kind in (ClusterRoleBinding.KIND, RoleBinding.KIND):
            for record in store.scan(kind):
                self._put(record.object)
            store.watch(kind, self._follow)

    def of(self, user: User, namespace: str) -> Iterator[Grant]:
        """What the user has in the whole cluster, and in the namespace if one is named."""
        found = [self._held[one] for one in holders(user) if one in self._held]
        for where in ("", namespace) if namespace else ("",):
            for held in found:
                for binding, subject in held.get(where, {}).values():
                    yield Grant(binding, subject, self.rules(binding.role_ref, where))

    def rules(self, reference: RoleRef, namespace: str) -> tuple[PolicyRule, ...] | None:
        """What a role allows, as a binding of that namespace names it; None if there is no such role."""
        is_role = reference.kind == Role.KIND
        key = Key(Role.KIND, namespace, reference.name) if is_role else Key(ClusterRole.KIND, "", reference.name)
        record = self._store.get(key)
        return None if record is None else record.object.rules

    def _follow(self, event: Event) -> None:
        if event.previous is not None:
            self._drop(event.previous.object)
        if event.type != "DELETED":
            self._put(event.record.object)

    def _put(self, binding: Binding) -> None:
        meta = binding.metadata
        for subject in reversed(binding.subjects):
            places = self._held.setdefault(holder(subject, meta.namespace), {})
            places.setdefault(meta.namespace, {})[meta.name] = (binding, subject)

    def _drop(self, binding: Binding) -> None:
        meta = binding.metadata
        for one in {holder(subject, meta.namespace) for subject in binding.subjects}:
            places = self._held[one]
            del places[meta.namespace][meta.name]
            if not places[meta.namespace]:
                del places[meta.namespace]
            if not places:
                del self._held[one]
