"""The settings of the agent and their validation. Where a kubelet has a setting, the name is the kubelet's,
in camelCase without capitals for abbreviations (`clusterDns`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from api.meta.names import dns_subdomain_error
from node_agent.eviction.thresholds import HARD, BadThreshold, parse_soft_thresholds, parse_thresholds
from node_agent.node import node_status
from node_agent.node.node_status import AGENT_PORT
from reconcile.config_schema import SECRET, ListenAddress, LogLevel, address_problems, problem

BYTES = r"[0-9]+(\.[0-9]+)?(k|Ki|M|Mi|G|Gi|T|Ti)?"
"""Pattern of a quantity of bytes, as in Pods."""
PAUSE_IMAGE = "podlane/pause"
"""Default image of sandboxes, built on each node. It is never pulled, because no registry publishes it: an image of
this name in a registry is not ours."""
SYSCTL = r"^(kernel\.(shm|msg|sem)|fs\.mqueue\.|net\.)[a-z0-9_.-]*\*?$"
"""Pattern of a sysctl of the IPC or network namespace; a final * stands for all sysctls with this prefix."""
TAINT = "^[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$"


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Registers this host as a node and keeps the containers of its pods running."""

    node_name: Annotated[str, msgspec.Meta(min_length=1, description="name of the Node object")]
    node_ip: Annotated[str, msgspec.Meta(min_length=1, description="address at which other nodes reach this node")]
    kubeconfig: Annotated[str, msgspec.Meta(description="kubeconfig of the API server")] = (
        "/etc/podlane/node.kubeconfig"
    )
    bootstrap_kubeconfig: Annotated[
        str,
        msgspec.Meta(
            description="kubeconfig for requesting the node's client certificate while kubeconfig does not exist"
        ),
    ] = ""
    rotate_certificates: Annotated[
        bool, msgspec.Meta(description="renew the certificate in kubeconfig before it expires")
    ] = True
    tls_cert_file: Annotated[
        str, msgspec.Meta(description="certificate of the HTTPS server; empty: see serverTlsBootstrap")
    ] = ""
    tls_private_key_file: Annotated[str, msgspec.Meta(description="private key of tlsCertFile")] = ""
    server_tls_bootstrap: Annotated[
        bool, msgspec.Meta(description="request the server certificate from the API server; false: self-signed")
    ] = True
    state_dir: Annotated[
        str, msgspec.Meta(description="directory of the pods' volumes and of submitted static pods")
    ] = "/var/lib/podlane/node-agent"
    local_volume_dir: Annotated[
        str,
        msgspec.Meta(
            pattern="^(none|(/[^:]*)?)$",
            description="directory of local volumes, such as a disk of its own, which must be mounted; empty: "
            "local-volumes in stateDir; none: the node has no local volumes",
        ),
    ] = ""
    docker_socket: Annotated[str, msgspec.Meta(description="unix socket of Docker")] = "/var/run/docker.sock"
    network: Annotated[Literal["sdn", "cni", "none"], msgspec.Meta(description="pod network: sdn, cni or none")] = "sdn"
    cni_conf_dir: Annotated[str, msgspec.Meta(description="directory of *.conflist files of network cni")] = (
        "/etc/cni/net.d"
    )
    cni_bin_dirs: Annotated[str, msgspec.Meta(description="directories of CNI plugins, separated by colons")] = (
        "/opt/cni/bin:/usr/lib/cni"
    )
    sdn_socket: Annotated[str, msgspec.Meta(description="unix socket of the sdn daemon")] = "/run/podlane/sdn.sock"
    manifest_dir: Annotated[
        str, msgspec.Meta(description="directory of static pod manifests, or one manifest file")
    ] = "/etc/podlane/manifests"
    manifest_url: Annotated[
        str,
        msgspec.Meta(
            pattern="^(https?://.+)?$",
            description="URL of static pod manifests; empty: none",
            extra={**SECRET, "accepted": "a URL with http or https"},
        ),
    ] = ""
    manifest_url_headers: Annotated[
        dict[str, str], msgspec.Meta(description="HTTP headers of requests to manifestUrl", extra=SECRET)
    ] = {}
    socket: Annotated[str, msgspec.Meta(description="unix socket on which root submits static pods")] = (
        "/run/podlane/node-agent.sock"
    )
    pause_image: Annotated[str, msgspec.Meta(description="image of the sandbox container")] = PAUSE_IMAGE
    cluster_domain: Annotated[str, msgspec.Meta(description="DNS domain of the cluster")] = "cluster.local"
    cluster_dns: Annotated[
        tuple[str, ...], msgspec.Meta(description="cluster DNS servers for pods; empty: those of the pod network")
    ] = ()
    resolv_conf: Annotated[str, msgspec.Meta(description="resolv.conf of the host, basis of the pods' resolv.conf")] = (
        "/etc/resolv.conf"
    )
    seccomp_default: Annotated[
        bool,
        msgspec.Meta(description="containers without a seccomp profile get Docker's default profile instead of none"),
    ] = True
    allowed_unsafe_sysctls: Annotated[
        tuple[
            Annotated[
                str,
                msgspec.Meta(
                    pattern=SYSCTL,
                    extra={"accepted": "a sysctl such as net.core.somaxconn, or a prefix with * at its end"},
                ),
            ],
            ...,
        ],
        msgspec.Meta(description="unsafe sysctls that pods may set, also as prefixes such as net.*"),
    ] = ()
    cgroup_root: Annotated[
        str,
        msgspec.Meta(
            pattern="^/",
            description="cgroup that contains the pods' cgroups",
            extra={"accepted": "an absolute path such as /podlane"},
        ),
    ] = "/"
    pod_pids_limit: Annotated[
        int, msgspec.Meta(ge=0, description="maximum number of processes and threads of a pod; 0: no limit")
    ] = 4096
    kube_reserved: Annotated[
        str, msgspec.Meta(description="resources reserved for this agent and Docker: cpu=100m,memory=200Mi")
    ] = ""
    system_reserved: Annotated[
        str, msgspec.Meta(description="resources reserved for the system: cpu=100m,memory=200Mi,ephemeral-storage=1Gi")
    ] = ""
    cpu_cfs_quota: Annotated[bool, msgspec.Meta(description="enforce CPU limits of containers")] = True
    max_pods: Annotated[int, msgspec.Meta(ge=1, description="maximum number of pods on the node")] = 110
    register_with_taints: Annotated[
        tuple[
            Annotated[
                str,
                msgspec.Meta(
                    pattern=TAINT,
                    extra={"accepted": "KEY=VALUE:EFFECT with NoSchedule, PreferNoSchedule or NoExecute"},
                ),
            ],
            ...,
        ],
        msgspec.Meta(description="taints with which the node registers, each KEY=VALUE:EFFECT"),
    ] = ()
    heartbeat_seconds: Annotated[float, msgspec.Meta(gt=0, description="interval of lease renewals in seconds")] = 10.0
    address: Annotated[str, msgspec.Meta(min_length=1, description="listen address of the HTTPS server")] = "0.0.0.0"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535, description="port of the HTTPS server")] = AGENT_PORT
    client_ca_file: Annotated[
        str, msgspec.Meta(description="CA of client certificates of the HTTPS server; empty: the CA of kubeconfig")
    ] = ""
    health_address: Annotated[
        ListenAddress, msgspec.Meta(description="listen address of /healthz, /readyz and /metrics")
    ] = "127.0.0.1:10248"
    container_log_max_size: Annotated[
        str,
        msgspec.Meta(
            pattern=f"^{BYTES}$",
            description="maximum size of a container's log file",
            extra={"accepted": "an amount of bytes such as 10Mi"},
        ),
    ] = "10Mi"
    container_log_max_files: Annotated[
        int, msgspec.Meta(ge=2, description="number of log files kept for each container")
    ] = 5
    pod_logs_dir: Annotated[str, msgspec.Meta(description="directory of links to container logs, by pod")] = (
        "/var/log/pods"
    )
    container_logs_dir: Annotated[
        str, msgspec.Meta(description="directory of links to container logs, by container")
    ] = "/var/log/containers"
    maximum_dead_containers_per_container: Annotated[
        int, msgspec.Meta(ge=1, description="dead containers kept for each container of a pod")
    ] = 1
    minimum_container_ttl_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="minimum age in seconds of a dead container before it is removed")
    ] = 0.0
    max_parallel_image_pulls: Annotated[
        int, msgspec.Meta(ge=1, description="maximum number of parallel image pulls")
    ] = 1
    registry_pull_qps: Annotated[
        float, msgspec.Meta(ge=0, description="image pulls per second, on average; 0: no limit")
    ] = 5.0
    registry_burst: Annotated[int, msgspec.Meta(ge=1, description="maximum burst of image pulls")] = 10
    local_registries: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="registries at loopback, link-local or own addresses of the node from which images may be "
            "pulled, as HOST or HOST:PORT; others at such addresses are refused"
        ),
    ] = ()
    image_pull_progress_deadline_seconds: Annotated[
        float, msgspec.Meta(gt=0, description="seconds without progress after which an image pull is cancelled")
    ] = 60.0
    image_gc_high_threshold_percent: Annotated[
        int, msgspec.Meta(ge=0, le=100, description="disk usage in percent that starts the removal of unused images")
    ] = 85
    image_gc_low_threshold_percent: Annotated[
        int, msgspec.Meta(ge=0, le=100, description="disk usage in percent down to which unused images are removed")
    ] = 80
    image_minimum_gc_age_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="minimum age in seconds of an unused image before it is removed")
    ] = 120.0
    image_maximum_gc_age_seconds: Annotated[
        float,
        msgspec.Meta(
            ge=0, description="age in seconds at which an unused image is removed regardless of disk usage; 0: never"
        ),
    ] = 0.0
    eviction_hard: Annotated[
        str, msgspec.Meta(description="hard eviction thresholds by signal, as amounts or percentages")
    ] = HARD
    eviction_soft: Annotated[str, msgspec.Meta(description="soft eviction thresholds by signal")] = ""
    eviction_soft_grace_period: Annotated[
        str, msgspec.Meta(description="grace periods of soft eviction thresholds: memory.available=1m30s")
    ] = ""
    eviction_max_pod_grace_period: Annotated[
        int, msgspec.Meta(ge=0, description="maximum grace period in seconds of pods that a soft threshold evicts")
    ] = 0
    eviction_pressure_transition_seconds: Annotated[
        float,
        msgspec.Meta(ge=0, description="seconds that a pressure condition stays True after the pressure has ended"),
    ] = 300.0
    disk_scan_seconds: Annotated[
        float, msgspec.Meta(gt=0, description="interval in seconds of disk usage scans of pods with limits")
    ] = 60.0
    runtime_request_timeout_seconds: Annotated[
        int, msgspec.Meta(ge=1, description="timeout in seconds of requests to Docker")
    ] = 120
    log_level: Annotated[LogLevel, msgspec.Meta(description="minimum level of log lines")] = "info"

    def __post_init__(self) -> None:
        """Validate what types and patterns do not. Raises ValueError with one line for each problem."""
        if problems := tuple(_config_problems(self)):
            raise ValueError("\n".join(problems))


def _config_problems(settings: Settings) -> Iterator[str]:
    if error := dns_subdomain_error(settings.node_name):
        yield problem("nodeName", settings.node_name, error)
    yield from address_problems("nodeIp", (settings.node_ip,))
    yield from address_problems("address", (settings.address,))
    for number, text in enumerate(settings.cluster_dns):
        yield from address_problems(f"clusterDns[{number}]", (text,))
    if bool(settings.tls_cert_file) != bool(settings.tls_private_key_file):
        yield "tlsCertFile, tlsPrivateKeyFile: found one without the other; both or none is accepted"
    low, high = settings.image_gc_low_threshold_percent, settings.image_gc_high_threshold_percent
    if low > high:
        yield f"imageGcLowThresholdPercent: found {low} above {high}; no more than the high threshold is accepted"
    for path, text in (("kubeReserved", settings.kube_reserved), ("systemReserved", settings.system_reserved)):
        try:
            node_status.parse_reserved(text)
        except node_status.BadReservation as error:
            yield f"{path}: {error}"
    try:
        parse_thresholds(settings.eviction_hard)
    except BadThreshold as error:
        yield f"evictionHard: {error}"
    try:
        parse_soft_thresholds(settings.eviction_soft, settings.eviction_soft_grace_period)
    except BadThreshold as error:
        yield f"evictionSoft, evictionSoftGracePeriod: {error}"
