"""Pod: containers, probes, hooks, security contexts, environment, DNS and statuses (types only). Pure.

Source: facts/node.md 7.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from api.core.placement import Affinity, PodOS, Spread, Toleration
from api.core.volumes import Volume, VolumeMount
from api.meta.types import (
    ATOMIC,
    Condition,
    Json,
    LocalObjectReference,
    Object,
    ObjectFieldSelector,
    ResourceFieldSelector,
    Value,
    merge_keys,
)


class HostAlias(Value, frozen=True):
    """A line for the pod's /etc/hosts."""

    ip: str
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(Value, frozen=True):
    """`name:value` in resolv.conf, or `name` alone."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Value, frozen=True):
    """What is added to the resolv.conf that the pod's policy gives."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = msgspec.field(default=())


class ExecAction(Value, frozen=True):
    """Run a program in the container, without a shell; exit code 0 is success."""

    command: tuple[str, ...] = ()


class HTTPHeader(Value, frozen=True, omit_defaults=False):
    """One header of a request."""

    name: str
    value: str = ""


class HTTPGetAction(Value, frozen=True):
    """GET a path; 200 to 399 is success.

    `port` is a number or the name of a port of the container; the pod itself is asked unless there is a `host`.
    """

    port: int | str
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(Value, frozen=True):
    """Connect; that it can is success."""

    port: int | str
    host: str = ""


class GRPCAction(Value, frozen=True):
    """Ask grpc.health.v1.Health/Check in plain text; SERVING is success."""

    port: int
    service: str | None = None


class SleepAction(Value, frozen=True):
    """Wait."""

    seconds: int


class Probe(Value, frozen=True):
    """One question that is asked again and again; exactly one of the four handlers is set.

    `initial_delay_seconds` pass before it is asked first. `period_seconds` pass from one time to the next, 10 if
    nothing is said. `timeout_seconds` are given for an answer, 1 if nothing is said. `success_threshold` good answers
    in a row are needed after a bad one. `failure_threshold` bad answers in a row are needed after a good one, 3 if
    nothing is said. `termination_grace_period_seconds` replaces that of the pod when the container is ended for it.
    """

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Value, frozen=True):
    """What to do at one moment in a container's life; exactly one is set. `tcp_socket` does nothing, as ever."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    sleep: SleepAction | None = None
    tcp_socket: TCPSocketAction | None = None


class Lifecycle(Value, frozen=True):
    """Hooks: `post_start` when the container has been started, `pre_stop` before it is asked to stop.

    It is asked with `stop_signal`, or as its image says.
    """

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None


class Capabilities(Value, frozen=True):
    """Names without `CAP_`; `ALL` is every one."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SELinuxOptions(Value, frozen=True):
    """The label under which SELinux sees the processes."""

    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class Profile(Value, frozen=True):
    """A seccomp or AppArmor profile; `type` is RuntimeDefault, Unconfined or Localhost, the last with a name."""

    type: str
    localhost_profile: str = ""


class Sysctl(Value, frozen=True):
    """A kernel parameter of the pod's own namespaces."""

    name: str
    value: str


class SecurityContext(Value, frozen=True):
    """What one container may do.

    `privileged` gives it all that root on the node has. `read_only_root_filesystem` keeps it from writing to its
    image. `run_as_user` and `run_as_group` are the numbers that its program runs as. `run_as_non_root` refuses to
    start it as root. `allow_privilege_escalation` lets its program become more than it was started as. `proc_mount` is
    Default or Unmasked: whether parts of /proc are hidden.
    """

    privileged: bool | None = None
    capabilities: Capabilities | None = None
    read_only_root_filesystem: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: str | None = None
    se_linux_options: SELinuxOptions | None = None
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    windows_options: Json = None


class PodSecurityContext(Value, frozen=True):
    """Of all containers of a pod; sysctls and groups are the pod's alone."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    supplemental_groups_policy: str | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    se_linux_options: SELinuxOptions | None = None
    se_linux_change_policy: str | None = None
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    sysctls: tuple[Sysctl, ...] = ()
    windows_options: Json = None


class KeySelector(Value, frozen=True):
    """One key of a ConfigMap or Secret of the pod's namespace; what is optional may be missing."""

    key: str
    name: str = ""
    optional: bool | None = None


class EnvSource(Value, frozen=True):
    """A whole ConfigMap or Secret of the pod's namespace."""

    name: str = ""
    optional: bool | None = None


class EnvFromSource(Value, frozen=True):
    """Every key becomes a variable, its name begun with `prefix`."""

    prefix: str = ""
    config_map_ref: EnvSource | None = None
    secret_ref: EnvSource | None = None


class EnvVarSource(Value, frozen=True):
    """Exactly one is given."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    file_key_ref: Json = None


class EnvVar(Value, frozen=True):
    """`value` may use, as `$(NAME)`, variables that were declared before."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


def is_name(text: str) -> bool:
    """Whether a variable may be called so."""
    return bool(text) and "=" not in text and text.isascii() and text.isprintable()


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
    claims: Annotated[Json, merge_keys("name")] = None


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
    ports: Annotated[tuple[ContainerPort, ...], merge_keys("containerPort", "protocol")] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    env: Annotated[tuple[EnvVar, ...], merge_keys("name")] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: Json = None
    restart_policy: str | None = None
    restart_policy_rules: Json = None
    volume_mounts: Annotated[tuple[VolumeMount, ...], merge_keys("mountPath")] = ()
    volume_devices: Annotated[Json, merge_keys("devicePath")] = None
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

    volumes: Annotated[tuple[Volume, ...], merge_keys("name")] = ()
    init_containers: Annotated[tuple[Container, ...], merge_keys("name")] = ()
    containers: Annotated[tuple[Container, ...], merge_keys("name")] = ()
    ephemeral_containers: Annotated[tuple[EphemeralContainer, ...], merge_keys("name")] = ()
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
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], merge_keys("name")] = ()
    hostname: str = ""
    subdomain: str = ""
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: tuple[Toleration, ...] = ()
    host_aliases: Annotated[tuple[HostAlias, ...], merge_keys("ip")] = ()
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
    scheduling_gates: Annotated[tuple[PodSchedulingGate, ...], merge_keys("name")] = ()
    resource_claims: Annotated[Json, merge_keys("name")] = None
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
    conditions: Annotated[tuple[Condition, ...], merge_keys("type")] = ()
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: Annotated[tuple[HostIP, ...], merge_keys("ip")] = msgspec.field(default=(), name="hostIPs")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: Annotated[tuple[PodIP, ...], merge_keys("ip")] = msgspec.field(default=(), name="podIPs")
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
