"""Node, Lease, RuntimeClass and NodeQuery. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

import msgspec

from api.core.node import Lease, Node
from api.core.placement import Toleration
from api.meta import names
from api.meta.schema import FieldError, quoted
from api.meta.types import ATOMIC, Object, Value
from api.network.queries import NodeQuery
from api.validation.placement import check_toleration
from api.validation.registry import RULES, KindRules
from master.resources.printing import AGE, NAME, age, none_if_empty
from master.resources.resource import Column, Resource, accept_status, proxy_subresource
from master.resources.validation import immutable, quantities_at_least_zero, required

ROLE_LABEL = "node-role.kubernetes.io/"


def ready_status(item: Node) -> str:
    """The status of its Ready condition: True, False or Unknown."""
    return next((row.status for row in item.status.conditions if row.type == "Ready"), "Unknown")


def internal_ip(item: Node) -> str:
    """Its first InternalIP, or nothing: an address is never guessed."""
    return next((row.address for row in item.status.addresses if row.type == "InternalIP"), "")


def _node_cells(item: Node, now: datetime.datetime) -> tuple[object, ...]:
    info = item.status.node_info
    state = {"True": "Ready", "False": "NotReady", "Unknown": "NotReady"}.get(ready_status(item), "Unknown")
    if not any(row.type == "Ready" for row in item.status.conditions):
        state = "Unknown"
    roles = sorted(label.removeprefix(ROLE_LABEL) for label in item.metadata.labels if label.startswith(ROLE_LABEL))
    external = next((row.address for row in item.status.addresses if row.type == "ExternalIP"), "")
    kernel = info.kernel_version if info else ""
    return (
        item.metadata.name,
        state + (",SchedulingDisabled" if item.spec.unschedulable else ""),
        none_if_empty(",".join(role for role in roles if role)),
        age(item.metadata.creation_timestamp, now),
        info.kubelet_version if info else "",
        none_if_empty(internal_ip(item)),
        none_if_empty(external),
        info.os_image if info and info.os_image else "<unknown>",
        (f"{kernel} ({info.architecture})" if info and info.architecture else kernel) or "<unknown>",
        info.container_runtime_version if info and info.container_runtime_version else "<unknown>",
    )


def _prepare_node_for_update(new: Node, old: Node) -> Node:
    return msgspec.structs.replace(new, status=old.status)


NODES: Resource[Node] = Resource(
    type=Node,
    plural="nodes",
    namespaced=False,
    short_names=("no",),
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
    rules=RULES[Node],
    cells=_node_cells,
    selectable_fields=lambda item: {"spec.unschedulable": "true" if item.spec.unschedulable else "false"},
    prepare_for_create=accept_status,
    prepare_for_update=_prepare_node_for_update,
    status_is_node_report=True,
    subresources=(proxy_subresource("NodeProxyOptions"),),
)


def _lease_cells(item: Lease, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.spec.holder_identity, age(item.metadata.creation_timestamp, now)


LEASES = Resource(
    type=Lease,
    plural="leases",
    namespaced=True,
    columns=(NAME, Column("Holder", "Who holds it."), AGE),
    rules=RULES[Lease],
    cells=_lease_cells,
    allow_create_on_update=True,
)


class Overhead(Value, frozen=True):
    """What a pod takes beside its containers: resource → quantity."""

    pod_fixed: dict[str, str | int | float] = {}


class Scheduling(Value, frozen=True):
    """On which nodes there is such a runtime."""

    node_selector: Annotated[dict[str, str], ATOMIC] = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(Object, frozen=True):
    """`handler` is the runtime's name on the nodes."""

    API_VERSION = "node.k8s.io/v1"
    KIND = "RuntimeClass"

    handler: str = ""
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None


def _validate_runtime_class(item: RuntimeClass) -> Iterator[FieldError]:
    yield from required("handler", item.handler, names.dns_label_error)
    if item.overhead is not None:
        yield from quantities_at_least_zero("overhead.podFixed", item.overhead.pod_fixed)
    if item.scheduling is None:
        return
    for key, value in item.scheduling.node_selector.items():
        if names.label_key_error(key) or names.label_value_error(value):
            why = names.label_key_error(key) or names.label_value_error(value)
            yield FieldError(f"scheduling.nodeSelector[{key}]", quoted(value), why)
    for number, row in enumerate(item.scheduling.tolerations):
        yield from check_toleration(f"scheduling.tolerations[{number}]", row)


def _runtime_class_cells(item: RuntimeClass, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.handler, age(item.metadata.creation_timestamp, now)


RUNTIME_CLASSES = Resource(
    type=RuntimeClass,
    plural="runtimeclasses",
    namespaced=False,
    columns=(NAME, Column("Handler", "The runtime's name on the nodes."), AGE),
    cells=_runtime_class_cells,
    rules=KindRules(
        validate=_validate_runtime_class,
        validate_update=lambda old, new: immutable(("handler", old.handler, new.handler)),
    ),
)


def _node_query_cells(item: NodeQuery, now: datetime.datetime) -> tuple[object, ...]:
    parts = {"trace": item.spec.trace, "report": item.spec.report or None, "services": item.spec.services}
    asks = next((name for name, part in parts.items() if part is not None), "capture")
    answer = item.status.error or ("answered" if item.status.answered else "waiting")
    return item.metadata.name, item.spec.node_name, asks, answer, age(item.metadata.creation_timestamp, now)


def _node_query_with_status(new: NodeQuery, old: NodeQuery) -> NodeQuery:
    return msgspec.structs.replace(old, status=new.status)


def _prepare_node_query_for_update(new: NodeQuery, old: NodeQuery) -> NodeQuery:
    return msgspec.structs.replace(new, spec=old.spec, status=old.status)


NODE_QUERYS = Resource(
    type=NodeQuery,
    plural="nodequeries",
    namespaced=False,
    columns=(
        NAME,
        Column("Node", "The node that is asked."),
        Column("Asks", "trace, report, capture or services."),
        Column("Answer", "Whether the node has answered, or why it could not."),
        AGE,
    ),
    rules=RULES[NodeQuery],
    cells=_node_query_cells,
    selectable_fields=lambda item: {"spec.nodeName": item.spec.node_name},
    prepare_for_create=accept_status,
    prepare_for_update=_prepare_node_query_for_update,
    with_status=_node_query_with_status,
    status_is_node_report=True,
)
