"""Node, Namespace, Lease and Binding. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from api.meta.types import MERGED_SET, Condition, Json, Object, ObjectReference, Value, merge_keys

# --- Namespace -------------------------------------------------------------------------------------------------------


class NamespaceSpec(Value, frozen=True):
    finalizers: tuple[str, ...] = ()


class NamespaceStatus(Value, frozen=True):
    phase: str = ""
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


class Namespace(Object, frozen=True):
    """A project: the border inside which pods reach each other (ovs-multitenant)."""

    API_VERSION = "v1"
    KIND = "Namespace"

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


# --- Node ------------------------------------------------------------------------------------------------------------


class Taint(Value, frozen=True):
    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Value, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(default="", name="providerID")
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: Annotated[tuple[str, ...], MERGED_SET] = msgspec.field(default=(), name="podCIDRs")


class NodeAddress(Value, frozen=True):
    """type is InternalIP, ExternalIP or Hostname."""

    type: str
    address: str


class NodeSystemInfo(Value, frozen=True, omit_defaults=False):
    machine_id: str = msgspec.field(default="", name="machineID")
    system_uuid: str = msgspec.field(default="", name="systemUUID")
    boot_id: str = msgspec.field(default="", name="bootID")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class DaemonEndpoint(Value, frozen=True):
    port: int = msgspec.field(name="Port")


class NodeDaemonEndpoints(Value, frozen=True):
    kubelet_endpoint: DaemonEndpoint | None = None


class ContainerImage(Value, frozen=True):
    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(Value, frozen=True):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    phase: str = ""
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()
    addresses: Annotated[tuple[NodeAddress, ...], merge_keys("type")] = ()
    daemon_endpoints: NodeDaemonEndpoints | None = None
    node_info: NodeSystemInfo | None = None
    images: tuple[ContainerImage, ...] = ()
    volumes_in_use: Json = None
    volumes_attached: Json = None
    runtime_handlers: Json = None
    features: Json = None


class Node(Object, frozen=True):
    """A host that runs pods."""

    API_VERSION = "v1"
    KIND = "Node"

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Binding(Object, frozen=True):
    """Says on which node a pod is to run; `target.name` is the node."""

    API_VERSION = "v1"
    KIND = "Binding"

    target: ObjectReference | None = None


NODE_LEASES = "kube-node-lease"
"""The namespace with one Lease for each node, named like it."""


class LeaseSpec(Value, frozen=True):
    """Held by `holder_identity` until `lease_duration_seconds` after `renew_time` (RFC 3339 with microseconds)."""

    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object, frozen=True):
    """Who holds something, and since when it was last renewed."""

    API_VERSION = "coordination.k8s.io/v1"
    KIND = "Lease"

    spec: LeaseSpec = LeaseSpec()
