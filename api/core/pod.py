"""Pod: containers, probes, hooks, security contexts, environment, DNS and statuses (types only). Pure."""

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
from api.meta.values import Int32, IntOrString, Quantity, Time


class HostAlias(Value, frozen=True):
    """A line of the pod's /etc/hosts."""

    ip: str
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(Value, frozen=True):
    """An option of resolv.conf: `name:value`, or `name` alone."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Value, frozen=True):
    """DNS settings that are added to the resolv.conf of the pod's DNS policy."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = msgspec.field(default=())


class ExecAction(Value, frozen=True):
    """A program that runs in the container, without a shell. Exit code 0 is success."""

    command: tuple[str, ...] = ()


class HTTPHeader(Value, frozen=True, omit_defaults=False):
    """A header of an HTTP request."""

    name: str
    value: str = ""


class HTTPGetAction(Value, frozen=True):
    """An HTTP GET request. Status codes from 200 to 399 are success.

    `port` is a number, or the name of a port of the container. `host` is the address, by default the pod's.
    """

    port: IntOrString
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(Value, frozen=True):
    """A TCP connection. It is a success if the connection is accepted."""

    port: IntOrString
    host: str = ""


class GRPCAction(Value, frozen=True):
    """A call of grpc.health.v1.Health/Check without TLS. SERVING is success."""

    port: Int32
    service: str | None = None


class SleepAction(Value, frozen=True):
    """A pause of some seconds."""

    seconds: int


class Probe(Value, frozen=True):
    """A periodic check of a container. Exactly one of `exec`, `http_get`, `tcp_socket` and `grpc` is set.

    `initial_delay_seconds` is the time before the first probe. `period_seconds` is the time between two probes, 10 by
    default. `timeout_seconds` is the time limit of a probe, 1 by default. `success_threshold` is the number of
    consecutive successes after which a failed probe counts as successful. `failure_threshold` is the number of
    consecutive failures after which the probe counts as failed, 3 by default. `termination_grace_period_seconds`
    replaces that of the pod when the container is stopped because of this probe.
    """

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: Int32 = 0
    timeout_seconds: Int32 = 0
    period_seconds: Int32 = 0
    success_threshold: Int32 = 0
    failure_threshold: Int32 = 0
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(Value, frozen=True):
    """An action at one point in the life of a container. Exactly one field is set. `tcp_socket` is accepted and does
    nothing, as in Kubernetes.
    """

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    sleep: SleepAction | None = None
    tcp_socket: TCPSocketAction | None = None


class Lifecycle(Value, frozen=True):
    """The hooks of a container.

    `post_start` runs after the container was started. `pre_stop` runs before the container is stopped. `stop_signal` is
    the signal that stops it, by default that of the image.
    """

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None


class Capabilities(Value, frozen=True):
    """Linux capabilities that are added and dropped, without the prefix `CAP_`. `ALL` stands for all capabilities."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SELinuxOptions(Value, frozen=True):
    """The SELinux label of the processes."""

    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class Profile(Value, frozen=True):
    """A seccomp or AppArmor profile. `type` is RuntimeDefault, Unconfined or Localhost; the last one needs
    `localhost_profile`.
    """

    type: str
    localhost_profile: str = ""


class Sysctl(Value, frozen=True):
    """A kernel parameter of the pod's namespaces."""

    name: str
    value: str


class SecurityContext(Value, frozen=True):
    """The privileges of a container.

    `privileged` gives it all privileges of root on the node. `read_only_root_filesystem` makes its root file system
    read-only. `run_as_user` is the user ID of its processes. `run_as_group` is their group ID. `run_as_non_root`
    refuses to start it as root. `allow_privilege_escalation` says whether a process may gain more privileges than its
    parent. `proc_mount` is Default or Unmasked: whether parts of /proc are hidden.
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
    """The privileges of all containers of a pod, and the groups and sysctls of the pod.

    `fs_group` is a group of all containers, and owns the files of volumes. `supplemental_groups` are further groups.
    `sysctls` are kernel parameters of the pod's namespaces. Other fields apply to containers that do not set them.
    """

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
    """A key of a ConfigMap or Secret in the pod's namespace. If `optional` is true, it may be missing."""

    key: str
    name: str = ""
    optional: bool | None = None


class EnvSource(Value, frozen=True):
    """A ConfigMap or Secret in the pod's namespace. If `optional` is true, it may be missing."""

    name: str = ""
    optional: bool | None = None


class EnvFromSource(Value, frozen=True):
    """A ConfigMap or Secret of which every key becomes an environment variable with the name prefix `prefix`."""

    prefix: str = ""
    config_map_ref: EnvSource | None = None
    secret_ref: EnvSource | None = None


class EnvVarSource(Value, frozen=True):
    """The source of an environment variable's value. Exactly one field is set."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    file_key_ref: Json = None


class EnvVar(Value, frozen=True):
    """An environment variable. `value` may refer to earlier variables as `$(NAME)`."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


def is_env_name(text: str) -> bool:
    """Return whether a text is a valid name of an environment variable."""
    return bool(text) and "=" not in text and text.isascii() and text.isprintable()


# --- Pod -------------------------------------------------------------------------------------------------------------


class ContainerPort(Value, frozen=True):
    """A port on which a container listens.

    `container_port` is its number, 1 to 65535. `name` is a name that services and probes may use. `host_port` is the
    port of the node that is forwarded to it. `host_ip` is the address of the node on which that port is open.
    `protocol` is TCP, UDP or SCTP, by default TCP.
    """

    container_port: Int32
    name: str = ""
    host_port: Int32 = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class ResourceRequirements(Value, frozen=True):
    """The resources of a container.

    `limits` are the maximum amounts. `requests` are the amounts that the node reserves. `claims` are devices, which are
    not supported.
    """

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}
    claims: Annotated[Json, merge_keys("name")] = None


class ContainerResizePolicy(Value, frozen=True):
    """What a change of a resource of a running container does.

    `resource_name` is cpu or memory. `restart_policy` is NotRequired, or RestartContainer: the container is restarted.
    """

    resource_name: str
    restart_policy: str


class Container(Value, frozen=True):
    """A container of a pod.

    `name` is unique in the pod. `image` is the image from which the container is created. `command` replaces the entry
    point of the image; it runs without a shell, and `$(NAME)` stands for an environment variable. `args` replace the
    arguments of the image. `working_dir` is the working directory of the program. `image_pull_policy` is Always,
    IfNotPresent or Never: when the image is pulled. `termination_message_path` is a file to which the program may write
    why it ends. `termination_message_policy` is File or FallbackToLogsOnError: where the termination message is read.
    `stdin` keeps the standard input open. `stdin_once` closes it when the first attached client disconnects. `tty`
    gives the program a terminal. `restart_policy` Always makes an init container a sidecar, which runs until the pod
    ends.
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
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
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
    """A container that is added to a running pod for debugging. It is never restarted.

    `target_container_name` is the container whose processes it sees.
    """

    target_container_name: str = ""


class ReadinessGate(Value, frozen=True):
    """A further condition of the pod that must be True before the pod is Ready. Another component sets it."""

    condition_type: str


class PodSchedulingGate(Value, frozen=True):
    """A gate that prevents scheduling of the pod until a component removes it."""

    name: str = ""


class PodSpec(Value, frozen=True):
    """The containers of a pod, and where and how they run.

    `restart_policy` is Always, OnFailure or Never: whether an exited container is restarted.
    `termination_grace_period_seconds` is the time that containers get to stop, 30 by default. `active_deadline_seconds`
    is the time after which a running pod fails. `dns_policy` is ClusterFirst, Default, ClusterFirstWithHostNet or None:
    which name servers containers use. `node_selector` has the labels that the node must have. `service_account_name` is
    the service account of the pod. `service_account` is the old name of `service_account_name`.
    `automount_service_account_token` says whether a token of the service account is mounted into containers.
    `node_name` is the node to which the pod is bound. `host_network` runs the pod in the network of its node.
    `host_pid` runs it in the PID namespace of its node. `host_ipc` runs it in the IPC namespace of its node.
    `host_users` false gives the pod a user namespace of its own. `share_process_namespace` lets its containers see each
    other's processes. `hostname` is the host name of the pod, by default its name. `hostname_override` replaces that
    name inside of the pod, and is in no DNS name. `subdomain` is the service in whose domain the pod has a DNS name.
    `scheduler_name` is the scheduler that binds the pod. `priority_class_name` is the PriorityClass of the pod.
    `priority` is the value of that class. `preemption_policy` is PreemptLowerPriority or Never: whether the scheduler
    may evict pods of lower priority to make room. `runtime_class_name` is the container runtime. `enable_service_links`
    adds environment variables for services. `set_hostname_as_fqdn` makes the fully
    qualified name the host name.
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
    priority: Int32 | None = None
    dns_config: PodDNSConfig | None = None
    readiness_gates: tuple[ReadinessGate, ...] = ()
    runtime_class_name: str | None = None
    enable_service_links: bool | None = None
    preemption_policy: str | None = None
    overhead: dict[str, Quantity] = {}
    topology_spread_constraints: Spread = ()
    set_hostname_as_fqdn: bool | None = msgspec.field(default=None, name="setHostnameAsFQDN")
    os: PodOS | None = None
    scheduling_gates: Annotated[tuple[PodSchedulingGate, ...], merge_keys("name")] = ()
    resource_claims: Annotated[Json, merge_keys("name")] = None
    resources: Json = None
    hostname_override: str | None = None


class ContainerStateWaiting(Value, frozen=True):
    """A container that does not run. `reason` is a word for programs, such as CrashLoopBackOff."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(Value, frozen=True):
    """A container that runs since `started_at`."""

    started_at: Time | None = None


class ContainerStateTerminated(Value, frozen=True):
    """A container that exited.

    `exit_code` is its exit code. `signal` is the signal that ended it. `reason` is a word for programs, such as
    OOMKilled. `message` is the termination message.
    """

    exit_code: Int32
    signal: Int32 = 0
    reason: str = ""
    message: str = ""
    started_at: Time | None = None
    finished_at: Time | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(Value, frozen=True):
    """The state of a container. At most one field is set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class VolumeMountStatus(Value, frozen=True):
    """A volume mount as it was set up in a container."""

    name: str
    mount_path: str
    read_only: bool = False
    recursive_read_only: str | None = None


class LinuxContainerUser(Value, frozen=True, omit_defaults=False):
    """The user and the groups of a container's first process."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class ContainerUser(Value, frozen=True):
    """The identity of a container's first process at its start."""

    linux: LinuxContainerUser | None = None


class ContainerStatus(Value, frozen=True, omit_defaults=False):
    """The status of one container of a pod.

    `state` is the present state. `last_state` is the state before the last restart. `ready` says whether the readiness
    probe succeeds. `restart_count` is the number of restarts. `image_id` is the ID of the image. `container_id` is the
    ID of the container, with the prefix `docker://`. `started` says whether the startup probe has succeeded.
    """

    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: Int32 = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None
    allocated_resources: dict[str, Quantity] = {}
    resources: ResourceRequirements | None = None
    volume_mounts: tuple[VolumeMountStatus, ...] = ()
    user: ContainerUser | None = None


class PodIP(Value, frozen=True):
    """An address of the pod."""

    ip: str


class HostIP(Value, frozen=True):
    """An address of the pod's node."""

    ip: str


FINAL_PHASES = frozenset(("Succeeded", "Failed"))
"""A pod in one of these runs nothing any more, and will not again."""


class PodStatus(Value, frozen=True):
    """The status of a pod, as its node reports it.

    `phase` is Pending, Running, Succeeded, Failed or Unknown. `message` is a sentence for people that explains the
    state. `reason` is a word for programs. `nominated_node_name` is the node on which the scheduler makes room for the
    pod. `host_ip` is the address of its node. `pod_ip` is the address of the pod. `start_time` is the time at which the
    node accepted the pod. `qos_class` is Guaranteed, Burstable or BestEffort: the order of eviction when the node lacks
    memory. `observed_generation` is the generation of the object that the node has processed.
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
    start_time: Time | None = None
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    resize: str = ""
    resource_claim_statuses: Json = None


class Pod(Object, frozen=True):
    """One or more containers that share a network namespace and an address."""

    API_VERSION = "v1"
    KIND = "Pod"
    PLURAL = "pods"
    NAMESPACED = True

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
