"""The API objects as frozen values: their JSON shape is that of Kubernetes v1 and network.openshift.io/v1.

Rules of this file:

- Field names are snake_case here and camelCase on the wire; a default is left out of the JSON.
- A field that the API accepts and keeps, but that no daemon acts on, has the type `Json`.
- Values are never changed; use `msgspec.structs.replace`.
- Times are RFC 3339 in UTC with seconds (`2026-01-31T12:00:00Z`); quantities are those of Kubernetes (`100m`, `64Mi`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Generic, TypeVar

import msgspec

from api.placement import Affinity, PodOS, Toleration
from api.pod_affinity import Spread
from api.pod_network import HostAlias, PodDNSConfig
from api.probes import Lifecycle, Probe
from api.security import PodSecurityContext, SecurityContext
from api.value import ATOMIC, JOINED, Json, LocalObjectReference, ObjectReference, Value, by
from api.variables import EnvFromSource, EnvVar
from api.volumes import Volume, VolumeMount


class OwnerReference(Value, frozen=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Value, frozen=True):
    """What every object has: its name, and what the server keeps of it.

    `name` is unique among the objects of a kind, in its namespace if it has one, and never changes. `generate_name` is
    the beginning of a name that the server completes, where none is given. `namespace` is the project that the object
    is in. `uid` tells the object from all others that ever had its name. `resource_version` changes with each change
    of the object. `generation` counts the changes of what is wished for. `creation_timestamp` is when the object was
    made. `deletion_timestamp` is when it will be gone, once its deletion was asked for.
    `deletion_grace_period_seconds` is how long that is after it was asked for. `labels` are names and values by which
    objects are chosen. `annotations` are names and values that nobody chooses by. `finalizers` name what must be done
    before the object may go. `managed_fields` tell who set which field. `self_link` is not used any more.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: Annotated[tuple[OwnerReference, ...], by("uid")] = ()
    finalizers: Annotated[tuple[str, ...], JOINED] = ()
    managed_fields: Json = None
    self_link: str = ""


class Condition(Value, frozen=True):
    """One row of `status.conditions` of a Node or a Pod; status is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    last_probe_time: str | None = None
    observed_generation: int = 0


class StatusCondition(Value, frozen=True, omit_defaults=False):
    """One row of `status.conditions` of newer kinds (Condition of meta/v1); clients count on all of its fields."""

    type: str
    status: str
    observed_generation: int = 0
    last_transition_time: str = ""
    reason: str = ""
    message: str = ""


class Object(Value, frozen=True):
    """Base of every object that has a place of its own in the API."""

    API_VERSION: ClassVar[str]
    KIND: ClassVar[str]

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


# --- Namespace -------------------------------------------------------------------------------------------------------


class NamespaceSpec(Value, frozen=True):
    finalizers: tuple[str, ...] = ()


class NamespaceStatus(Value, frozen=True):
    phase: str = ""
    conditions: Annotated[tuple[Condition, ...], by("type")] = ()


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
    pod_cidrs: Annotated[tuple[str, ...], JOINED] = msgspec.field(default=(), name="podCIDRs")


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
    conditions: Annotated[tuple[Condition, ...], by("type")] = ()
    addresses: Annotated[tuple[NodeAddress, ...], by("type")] = ()
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


# --- Pod -------------------------------------------------------------------------------------------------------------


class ContainerPort(Value, frozen=True):
    """A port at which a container answers.

    `container_port` is its number, 1 to 65535. `name` is how services and probes may call it. `host_port` is the port
    of the node that leads to it. `host_ip` is the node's address at which it does. `protocol` is TCP, UDP or
    SCTP, TCP if nothing is said.
    """

    container_port: int
    name: str = ""
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class ResourceRequirements(Value, frozen=True):
    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}
    claims: Annotated[Json, by("name")] = None


class Container(Value, frozen=True):
    """A program that runs in a pod.

    `name` is unique in the pod. `image` is what the container is made from. `command` replaces the entry point of the
    image, without a shell; $(NAME) stands for a variable. `args` replace the arguments of the image. `working_dir` is
    the directory that the program starts in. `image_pull_policy` is Always, IfNotPresent or Never: when the image is
    fetched. `termination_message_path` is the file in which the program may say why it ended.
    `termination_message_policy` is File or FallbackToLogsOnError: where that is looked for. `stdin` keeps the standard
    input open. `stdin_once` closes it when the first who attached has gone. `tty` gives the program a terminal.
    `restart_policy` Always makes a container that comes before others one that runs beside them.
    """

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: Annotated[tuple[ContainerPort, ...], by("containerPort", "protocol")] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: Annotated[tuple[EnvVar, ...], by("name")] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: Json = None
    restart_policy: str | None = None
    restart_policy_rules: Json = None
    volume_mounts: Annotated[tuple[VolumeMount, ...], by("mountPath")] = ()
    volume_devices: Annotated[Json, by("devicePath")] = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class EphemeralContainer(Container, frozen=True):
    """Added to a pod that runs, to look into it; never restarted."""

    target_container_name: str = ""


class ReadinessGate(Value, frozen=True):
    """A condition, said by somebody else, that must be True before the pod is Ready."""

    condition_type: str


class PodSchedulingGate(Value, frozen=True):
    """Keeps the pod waiting for a node until somebody takes it away."""

    name: str = ""


class PodSpec(Value, frozen=True):
    """What a pod consists of, and where and how it runs.

    `restart_policy` is Always, OnFailure or Never: whether a container that has ended is started again.
    `termination_grace_period_seconds` is how long containers may take to end, 30 if nothing is said.
    `active_deadline_seconds` is how long the pod may run before it fails. `dns_policy` is ClusterFirst, Default,
    ClusterFirstWithHostNet or None: whom containers ask for names. `node_selector` has the labels that the node must
    have. `service_account_name` is the account under which the pod's containers speak to the server.
    `service_account` is the old name of `service_account_name`. `automount_service_account_token` says whether
    containers find a token of the account. `node_name` is the node that the pod is bound to. `host_network` lets the
    pod use the network of its node. `host_pid` lets it see the processes of its node. `host_ipc` (hostIPC)
    lets it use the memory that processes of its node share. `host_users` false gives the pod users of its own.
    `share_process_namespace` lets its containers see each other's processes. `hostname` is what the pod calls itself,
    its own name if nothing is said. `subdomain` is the service in whose domain the pod has a name. `scheduler_name` is
    who binds the pod to a node. `priority_class_name` names how important the pod is. `priority` is that as a number.
    `preemption_policy` is PreemptLowerPriority or Never: whether less important pods may be ended to make room.
    `runtime_class_name` names another runtime for the containers. `enable_service_links` tells containers of services
    by variables. `set_hostname_as_fqdn` makes the full name the host's name.
    """

    volumes: Annotated[tuple[Volume, ...], by("name")] = ()
    init_containers: Annotated[tuple[Container, ...], by("name")] = ()
    containers: Annotated[tuple[Container, ...], by("name")] = ()
    ephemeral_containers: Annotated[tuple[EphemeralContainer, ...], by("name")] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    dns_policy: str = ""
    node_selector: Annotated[dict[str, str], ATOMIC] = {}
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    security_context: PodSecurityContext | None = None
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], by("name")] = ()
    hostname: str = ""
    subdomain: str = ""
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: tuple[Toleration, ...] = ()
    host_aliases: Annotated[tuple[HostAlias, ...], by("ip")] = ()
    priority_class_name: str = ""
    priority: int | None = None
    dns_config: PodDNSConfig | None = None
    readiness_gates: tuple[ReadinessGate, ...] = ()
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    preemption_policy: str | None = None
    overhead: Json = None
    topology_spread_constraints: Spread = ()
    set_hostname_as_fqdn: bool | None = msgspec.field(default=None, name="setHostnameAsFQDN")
    os: PodOS | None = None
    scheduling_gates: Annotated[tuple[PodSchedulingGate, ...], by("name")] = ()
    resource_claims: Annotated[Json, by("name")] = None
    resources: Json = None


class ContainerStateWaiting(Value, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(Value, frozen=True):
    started_at: str | None = None


class ContainerStateTerminated(Value, frozen=True):
    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(Value, frozen=True):
    """Exactly one of the three is set; none at all means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class VolumeMountStatus(Value, frozen=True):
    name: str
    mount_path: str
    read_only: bool = False
    recursive_read_only: str | None = None


class LinuxContainerUser(Value, frozen=True, omit_defaults=False):
    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class ContainerUser(Value, frozen=True):
    """Who the first process of a container was when it began."""

    linux: LinuxContainerUser | None = None


class ContainerStatus(Value, frozen=True, omit_defaults=False):
    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None
    allocated_resources: dict[str, str | int | float] = {}
    resources: ResourceRequirements | None = None
    volume_mounts: tuple[VolumeMountStatus, ...] = ()
    user: ContainerUser | None = None


class PodIP(Value, frozen=True):
    ip: str


class HostIP(Value, frozen=True):
    ip: str


FINAL_PHASES = frozenset(("Succeeded", "Failed"))
"""A pod in one of these runs nothing any more, and will not again."""


class PodStatus(Value, frozen=True):
    """How a pod is, as its node tells.

    `phase` is Pending, Running, Succeeded, Failed or Unknown. `message` says for people why the pod is as it is.
    `reason` says it in a word for programs. `nominated_node_name` is the node on which room is being made for it.
    `host_ip` is the address of its node. `pod_ip` is its own. `start_time` is when its node began with
    it. `qos_class` is Guaranteed, Burstable or BestEffort: who goes last when a node lacks memory.
    `observed_generation` is the generation of the object that the node has seen.
    """

    observed_generation: int = 0
    phase: str = ""
    conditions: Annotated[tuple[Condition, ...], by("type")] = ()
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: Annotated[tuple[HostIP, ...], by("ip")] = msgspec.field(default=(), name="hostIPs")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: Annotated[tuple[PodIP, ...], by("ip")] = msgspec.field(default=(), name="podIPs")
    start_time: str | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    resize: str = ""
    resource_claim_statuses: Json = None


class Pod(Object, frozen=True):
    """One or more containers that share an address and a lane."""

    API_VERSION = "v1"
    KIND = "Pod"

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Binding(Object, frozen=True):
    """Says on which node a pod is to run; `target.name` is the node."""

    API_VERSION = "v1"
    KIND = "Binding"

    target: ObjectReference | None = None


# --- network.openshift.io --------------------------------------------------------------------------------------------


class ClusterNetworkEntry(Value, frozen=True):
    cidr: str = msgspec.field(name="CIDR")
    host_subnet_length: int


class ClusterNetwork(Object, frozen=True):
    """The overlay of the whole cluster; the only one in use is called `default`.

    `hostsubnetlength` counts host bits (9 gives each node a /23). `plugin_name` is
    `redhat/openshift-ovs-subnet` or `redhat/openshift-ovs-multitenant`.
    """

    API_VERSION = "network.openshift.io/v1"
    KIND = "ClusterNetwork"

    network: str = ""
    hostsubnetlength: int = 0
    service_network: str = ""
    plugin_name: str = ""
    cluster_networks: tuple[ClusterNetworkEntry, ...] = ()
    vxlan_port: int | None = None
    mtu: int | None = None


class HostSubnet(Object, frozen=True):
    """The part of the cluster network that belongs to one node, and the address behind which it lies."""

    API_VERSION = "network.openshift.io/v1"
    KIND = "HostSubnet"

    host: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    subnet: str = ""
    egress_ips: tuple[str, ...] = msgspec.field(default=(), name="egressIPs")
    egress_cidrs: tuple[str, ...] = msgspec.field(default=(), name="egressCIDRs")


class NetNamespace(Object, frozen=True):
    """The lane of one project: its VNID, 0 to 16777215, of which 0 reaches all and is reached by all."""

    API_VERSION = "network.openshift.io/v1"
    KIND = "NetNamespace"

    netname: str = ""
    netid: int = msgspec.field(default=-1)
    egress_ips: tuple[str, ...] = msgspec.field(default=(), name="egressIPs")


# --- Status and List -------------------------------------------------------------------------------------------------


class StatusCause(Value, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Value, frozen=True):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class ListMeta(Value, frozen=True, omit_defaults=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None
    self_link: str = ""


class Status(Value, frozen=True):
    """The answer to a request that has no object for an answer; `status` is Success or Failure."""

    kind: str = "Status"
    api_version: str = "v1"
    metadata: ListMeta = ListMeta()
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0


O = TypeVar("O", bound=Object)


class List(Value, Generic[O], frozen=True, omit_defaults=False):
    """`kind` is the item's kind followed by `List`."""

    kind: str
    api_version: str
    metadata: ListMeta
    items: tuple[O, ...] = ()


ASSIGN_SUBNET = "pod.network.openshift.io/assign-subnet"
"""Annotation of a HostSubnet made by hand: the master gives it a subnet, and takes the annotation away."""

PLUGIN_SUBNET = "redhat/openshift-ovs-subnet"
PLUGIN_MULTITENANT = "redhat/openshift-ovs-multitenant"
