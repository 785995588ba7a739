"""Node, Lease, RuntimeClass and NodeQuery. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from api.core.node import Lease, Node
from api.core.placement import Toleration
from api.meta import names
from api.meta.schema import FieldError, quoted
from api.meta.types import ATOMIC, Object, Value
from api.meta.values import Quantity
from api.network.queries import NodeQuery
from api.validation.placement import check_toleration
from api.validation.registry import RULES, KindRules
from master.resources.printing import AGE, NAME, none_if_empty
from master.resources.resource import Column, Resource, accept_status, proxy_subresource
from master.resources.validation import immutable, quantities_at_least_zero, required

ROLE_LABEL = "node-role.kubernetes.io/"


def ready_status(node: Node) -> str:
    """Return the status of the condition Ready: True, False or Unknown."""
    return next((condition.status for condition in node.status.conditions if condition.type == "Ready"), "Unknown")


def internal_ip(node: Node) -> str:
    """Return the first InternalIP; empty if there is none, because an address is never guessed."""
    return next((address.address for address in node.status.addresses if address.type == "InternalIP"), "")


def _state_text(node: Node) -> str:
    state = {"True": "Ready", "False": "NotReady", "Unknown": "NotReady"}.get(ready_status(node), "Unknown")
    if not any(condition.type == "Ready" for condition in node.status.conditions):
        state = "Unknown"
    return state + (",SchedulingDisabled" if node.spec.unschedulable else "")


def _roles_text(node: Node) -> str:
    roles = sorted(label.removeprefix(ROLE_LABEL) for label in node.metadata.labels if label.startswith(ROLE_LABEL))
    return none_if_empty(",".join(role for role in roles if role))


def _external_ip(node: Node) -> str:
    return next((address.address for address in node.status.addresses if address.type == "ExternalIP"), "")


def _kernel_text(node: Node) -> str:
    info = node.status.node_info
    kernel = info.kernel_version if info else ""
    return (f"{kernel} ({info.architecture})" if info and info.architecture else kernel) or "<unknown>"


def _kubelet_version(node: Node) -> str:
    return node.status.node_info.kubelet_version if node.status.node_info else ""


def _os_image(node: Node) -> str:
    return (node.status.node_info and node.status.node_info.os_image) or "<unknown>"


def _container_runtime(node: Node) -> str:
    return (node.status.node_info and node.status.node_info.container_runtime_version) or "<unknown>"


def _prepare_node_for_update(new: Node, old: Node) -> Node:
    return msgspec.structs.replace(new, status=old.status)


NODES: Resource[Node] = Resource(
    type=Node,
    short_names=("no",),
    columns=(
        NAME,
        Column(
            "Status", "Ready or NotReady, and whether new pods may be placed on it.", lambda node, _: _state_text(node)
        ),
        Column("Roles", "The roles of the node, from its labels.", lambda node, _: _roles_text(node)),
        AGE,
        Column("Version", "The version of its node agent.", lambda node, _: _kubelet_version(node)),
        Column(
            "Internal-IP",
            "The address by which other nodes reach it.",
            lambda node, _: none_if_empty(internal_ip(node)),
            wide=True,
        ),
        Column(
            "External-IP",
            "The address by which the outside reaches it.",
            lambda node, _: none_if_empty(_external_ip(node)),
            wide=True,
        ),
        Column("OS-Image", "Its operating system.", lambda node, _: _os_image(node), wide=True),
        Column("Kernel-Version", "Its kernel.", lambda node, _: _kernel_text(node), wide=True),
        Column(
            "Container-Runtime",
            "Container runtime and its version.",
            lambda node, _: _container_runtime(node),
            wide=True,
        ),
    ),
    rules=RULES[Node],
    selectable_fields=lambda node: {"spec.unschedulable": "true" if node.spec.unschedulable else "false"},
    prepare_for_create=accept_status,
    prepare_for_update=_prepare_node_for_update,
    status_update_keeps_metadata=True,
    subresources=(proxy_subresource("NodeProxyOptions"),),
    acted_on_by="the master: subnet, taints, eviction; the sdn daemons; `proxy` leads to the node's server",
)


LEASES = Resource(
    type=Lease,
    columns=(
        NAME,
        Column("Holder", "Holder of the lease.", lambda lease, _: lease.spec.holder_identity),
        AGE,
    ),
    rules=RULES[Lease],
    allow_create_on_update=True,
    acted_on_by="written by nodes and leaders; the master deletes the Lease of a node with the node",
)


class Overhead(Value, frozen=True):
    """The resources that a pod takes in addition to those of its containers."""

    pod_fixed: dict[str, Quantity] = {}


class Scheduling(Value, frozen=True):
    """The nodes that have the runtime."""

    node_selector: Annotated[dict[str, str], ATOMIC] = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(Object, frozen=True):
    """A container runtime. `handler` is its name on the nodes."""

    API_VERSION = "node.k8s.io/v1"
    KIND = "RuntimeClass"
    PLURAL = "runtimeclasses"
    NAMESPACED = False

    handler: str = ""
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None


def _validate_runtime_class(runtime_class: RuntimeClass) -> Iterator[FieldError]:
    yield from required("handler", runtime_class.handler, names.dns_label_error)
    if runtime_class.overhead is not None:
        yield from quantities_at_least_zero("overhead.podFixed", runtime_class.overhead.pod_fixed)
    if runtime_class.scheduling is None:
        return
    for key, value in runtime_class.scheduling.node_selector.items():
        if names.label_key_error(key) or names.label_value_error(value):
            reason = names.label_key_error(key) or names.label_value_error(value)
            yield FieldError(f"scheduling.nodeSelector[{key}]", quoted(value), reason)
    for number, toleration in enumerate(runtime_class.scheduling.tolerations):
        yield from check_toleration(f"scheduling.tolerations[{number}]", toleration)


RUNTIME_CLASSES = Resource(
    type=RuntimeClass,
    columns=(
        NAME,
        Column("Handler", "The runtime's name on the nodes.", lambda runtime_class, _: runtime_class.handler),
        AGE,
    ),
    rules=KindRules(
        validate=_validate_runtime_class,
        validate_update=lambda old, new: immutable(("handler", old.handler, new.handler)),
    ),
    acted_on_by=(
        "the master requires that of a new pod, and fills in its overhead and nodes; `runtimeClassName` of a pod names "
        "a runtime of Docker"
    ),
)


def _question_text(query: NodeQuery) -> str:
    parts = {"trace": query.spec.trace, "report": query.spec.report or None, "services": query.spec.services}
    return next((name for name, part in parts.items() if part is not None), "capture")


def _answer_text(query: NodeQuery) -> str:
    return query.status.error or ("answered" if query.status.answered else "waiting")


def _node_query_with_status(new: NodeQuery, old: NodeQuery) -> NodeQuery:
    return msgspec.structs.replace(old, status=new.status)


def _prepare_node_query_for_update(new: NodeQuery, old: NodeQuery) -> NodeQuery:
    return msgspec.structs.replace(new, spec=old.spec, status=old.status)


NODE_QUERIES = Resource(
    type=NodeQuery,
    columns=(
        NAME,
        Column("Node", "The node that answers the query.", lambda query, _: query.spec.node_name),
        Column("Asks", "trace, report, capture or services.", lambda query, _: _question_text(query)),
        Column("Answer", "State of the answer, or the error.", lambda query, _: _answer_text(query)),
        AGE,
    ),
    rules=RULES[NodeQuery],
    selectable_fields=lambda csi_node: {"spec.nodeName": csi_node.spec.node_name},
    prepare_for_create=accept_status,
    prepare_for_update=_prepare_node_query_for_update,
    with_status=_node_query_with_status,
    status_update_keeps_metadata=True,
    acted_on_by="answered by sdn daemons; deleted after five minutes",
)
