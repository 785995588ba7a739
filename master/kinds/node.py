"""Node: a host that runs pods. Pure."""

from __future__ import annotations

import datetime

import msgspec

from api.core.node import Node
from master.kinds.kind import AGE, NAME, Column, Kind, age, or_none, proxy

ROLE_LABEL = "node-role.kubernetes.io/"


def ready(item: Node) -> str:
    """The status of its Ready condition: True, False or Unknown."""
    return next((row.status for row in item.status.conditions if row.type == "Ready"), "Unknown")


def internal_ip(item: Node) -> str:
    """Its first InternalIP, or nothing: an address is never guessed."""
    return next((row.address for row in item.status.addresses if row.type == "InternalIP"), "")


def _cells(item: Node, now: datetime.datetime) -> tuple[object, ...]:
    info = item.status.node_info
    state = {"True": "Ready", "False": "NotReady", "Unknown": "NotReady"}.get(ready(item), "Unknown")
    if not any(row.type == "Ready" for row in item.status.conditions):
        state = "Unknown"
    roles = sorted(label.removeprefix(ROLE_LABEL) for label in item.metadata.labels if label.startswith(ROLE_LABEL))
    external = next((row.address for row in item.status.addresses if row.type == "ExternalIP"), "")
    kernel = info.kernel_version if info else ""
    return (
        item.metadata.name,
        state + (",SchedulingDisabled" if item.spec.unschedulable else ""),
        or_none(",".join(role for role in roles if role)),
        age(item.metadata.creation_timestamp, now),
        info.kubelet_version if info else "",
        or_none(internal_ip(item)),
        or_none(external),
        info.os_image if info and info.os_image else "<unknown>",
        (f"{kernel} ({info.architecture})" if info and info.architecture else kernel) or "<unknown>",
        info.container_runtime_version if info and info.container_runtime_version else "<unknown>",
    )


def _on_update(new: Node, old: Node) -> Node:
    return msgspec.structs.replace(new, status=old.status)


NODE: Kind[Node] = Kind(
    type=Node,
    plural="nodes",
    singular="node",
    namespaced=False,
    short=("no",),
    columns=(
        NAME,
        Column("Status", "Ready or NotReady, and whether new pods may be placed on it."),
        Column("Roles", "The roles of the node, from its labels."),
        AGE,
        Column("Version", "The version of its node agent."),
        Column("Internal-IP", "The address by which other nodes reach it.", wide=True),
        Column("External-IP", "The address by which the outside reaches it.", wide=True),
        Column("OS-Image", "Its operating system.", wide=True),
        Column("Kernel-Version", "Its kernel.", wide=True),
        Column("Container-Runtime", "What runs its containers.", wide=True),
    ),
    cells=_cells,
    fields=lambda item: {"spec.unschedulable": "true" if item.spec.unschedulable else "false"},
    on_update=_on_update,
    with_status=lambda new, old: msgspec.structs.replace(old, status=new.status),
    reported=True,
    more=(proxy("NodeProxyOptions"),),
)
