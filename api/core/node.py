"""Node, Namespace, Lease and Binding. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from api.meta.types import MERGED_SET, Condition, Json, Object, ObjectReference, Value, merge_keys
from api.meta.values import Int32, MicroTime, Time

# --- Namespace -------------------------------------------------------------------------------------------------------


class NamespaceSpec(Value, frozen=True):
    """The finalizers of a namespace, which delay its deletion until it is empty."""

    finalizers: tuple[str, ...] = ()


class NamespaceStatus(Value, frozen=True):
    """The status of a namespace. `phase` is Active or Terminating."""

    phase: str = ""
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()


class Namespace(Object, frozen=True):
    """A project: a scope of names, and with ovs-multitenant the limit within which pods reach each other."""

    API_VERSION = "v1"
    KIND = "Namespace"
    PLURAL = "namespaces"
    NAMESPACED = False

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


# --- Node ------------------------------------------------------------------------------------------------------------


class Taint(Value, frozen=True):
    """A property of a node that repels pods without a matching toleration.

    `effect` is NoSchedule, PreferNoSchedule or NoExecute. `time_added` is the time at which a NoExecute taint was
    added.
    """

    key: str
    value: str = ""
    effect: str = ""
    time_added: Time | None = None


class NodeSpec(Value, frozen=True):
    """The desired state of a node.

    `unschedulable` keeps new pods away from the node. `taints` repel pods without matching tolerations. `pod_cidr` is
    used by other network plugins.
    """

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(default="", name="providerID")
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: Annotated[tuple[str, ...], MERGED_SET] = msgspec.field(default=(), name="podCIDRs")


class NodeAddress(Value, frozen=True):
    """An address of a node. `type` is InternalIP, ExternalIP or Hostname."""

    type: str
    address: str


class NodeSystemInfo(Value, frozen=True, omit_defaults=False):
    """The versions and IDs of a node's host."""

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
    """A port on which a daemon of the node listens."""

    port: Int32 = msgspec.field(name="Port")


class NodeDaemonEndpoints(Value, frozen=True):
    """The ports of the node's daemons. `kubelet_endpoint` is that of the node agent's HTTPS server."""

    kubelet_endpoint: DaemonEndpoint | None = None


class ContainerImage(Value, frozen=True):
    """An image on a node, with its names and its size in bytes."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(Value, frozen=True):
    """The status of a node.

    `capacity` are the resources of the host. `allocatable` are the resources that pods may request. `images` are the
    largest images on the node.
    """

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
    PLURAL = "nodes"
    NAMESPACED = False

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Binding(Object, frozen=True):
    """The assignment of a pod to a node. `target.name` is the node."""

    API_VERSION = "v1"
    KIND = "Binding"

    target: ObjectReference | None = None


NODE_LEASES = "kube-node-lease"
"""The namespace with one Lease for each node, named like it."""


class LeaseSpec(Value, frozen=True):
    """The holder of a lease.

    `holder_identity` holds the lease until `lease_duration_seconds` after `renew_time` (RFC 3339 with microseconds).
    `lease_transitions` is the number of changes of the holder.
    """

    holder_identity: str = ""
    lease_duration_seconds: Int32 | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: Int32 | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object, frozen=True):
    """A lease: its holder, and the time of its last renewal."""

    API_VERSION = "coordination.k8s.io/v1"
    KIND = "Lease"
    PLURAL = "leases"
    NAMESPACED = True

    spec: LeaseSpec = LeaseSpec()
