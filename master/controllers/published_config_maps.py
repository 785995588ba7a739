"""ConfigMaps in which the master publishes what it is, and the permission to read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from api.core.config import ConfigMap
from api.meta.types import ObjectMeta
from master.controllers.actions import Create, Update
from master.resources.rbac import RBAC_GROUP, PolicyRule, Role, RoleBinding, RoleRef, Subject


def publish(config_map: ObjectMeta, data: Mapping[str, str], stored: ConfigMap | None) -> Iterator[Create | Update]:
    """Yield the write of a ConfigMap that lacks some of the data. Other keys stay."""
    if stored is None:
        yield Create(ConfigMap(metadata=config_map, data=dict(data)))
    elif stored.data != {**stored.data, **data}:
        yield Update(replace(stored, data={**stored.data, **data}), stored)


def allow_reading(
    config_map: ObjectMeta,
    verbs: tuple[str, ...],
    users: tuple[str, ...],
    role: tuple[str, Role | None],
    binding: tuple[str, RoleBinding | None],
) -> Iterator[Create]:
    """Yield the creates of a role that allows verbs at a ConfigMap, and of its binding to users.

    Role and binding are given by their names, with the stored objects. Stored ones stay as they are.
    """
    namespace = config_map.namespace
    if role[1] is None:
        rule = PolicyRule(verbs=verbs, api_groups=("",), resources=("configmaps",), resource_names=(config_map.name,))
        yield Create(Role(metadata=ObjectMeta(name=role[0], namespace=namespace), rules=(rule,)))
    if binding[1] is None:
        yield Create(
            RoleBinding(
                metadata=ObjectMeta(name=binding[0], namespace=namespace),
                subjects=tuple(Subject(kind="User", api_group=RBAC_GROUP, name=name) for name in users),
                role_ref=RoleRef(api_group=RBAC_GROUP, kind="Role", name=role[0]),
            )
        )
