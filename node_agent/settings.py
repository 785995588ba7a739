"""The settings of the agent. Names are those of KubeletConfiguration."""

from __future__ import annotations

from typing import Annotated

import msgspec

from node_agent.eviction.thresholds import HARD, BadThreshold, parse_soft_thresholds, parse_thresholds
from node_agent.node import node_status
from node_agent.node.node_status import AGENT_PORT

BYTES = r"[0-9]+(\.[0-9]+)?(k|Ki|M|Mi|G|Gi|T|Ti)?"
"""A quantity of bytes, as in Pods."""
MADE_HERE = "podlane/pause"
"""Made on each node. Nobody publishes it, so a registry that has something of this name has a stranger's."""
SYSCTL = r"^(kernel\.(shm|msg|sem)|fs\.mqueue\.|net\.)[a-z0-9_.-]*\*?$"
"""Sysctls that belong to a pod's own IPC and network, one by one or all that begin so."""
TAINT = "^[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$"


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Registers this host as a node and keeps the containers of its pods running."""

    node_name: Annotated[str, msgspec.Meta(min_length=1, description="name under which the node registers")]
    node_ip: Annotated[str, msgspec.Meta(min_length=1, description="address under which others reach this node")]
    kubeconfig: Annotated[str, msgspec.Meta(description="file that leads to the master")] = (
        "/etc/podlane/node.kubeconfig"
    )
    bootstrap_kubeconfig: Annotated[
        str, msgspec.Meta(description="file with which the node asks for its certificate while kubeconfig is not there")
    ] = ""
    rotate_certificates: Annotated[
        bool, msgspec.Meta(description="whether the certificate in kubeconfig is renewed in time")
    ] = True
    tls_cert_file: Annotated[
        str, msgspec.Meta(description="certificate of the node's own server; empty: see below")
    ] = ""
    tls_private_key_file: Annotated[str, msgspec.Meta(description="key of that certificate")] = ""
    server_tls_bootstrap: Annotated[
        bool, msgspec.Meta(description="whether that certificate is asked of the master, or else signed by itself")
    ] = False
    state_dir: Annotated[str, msgspec.Meta(description="where volumes of pods, and submitted pods, are kept")] = (
        "/var/lib/podlane/node-agent"
    )
    docker_socket: Annotated[str, msgspec.Meta(description="unix socket of Docker")] = "/var/run/docker.sock"
    network: Annotated[
        str, msgspec.Meta(pattern="^(sdn|cni|none)$", description="who gives pods their network: sdn, cni or none")
    ] = "sdn"
    cni_conf_dir: Annotated[str, msgspec.Meta(description="where network cni looks for its *.conflist")] = (
        "/etc/cni/net.d"
    )
    cni_bin_dirs: Annotated[str, msgspec.Meta(description="where CNI plugins are, separated by colons")] = (
        "/opt/cni/bin:/usr/lib/cni"
    )
    sdn_socket: Annotated[str, msgspec.Meta(description="unix socket of the sdn daemon")] = "/run/podlane/sdn.sock"
    manifest_dir: Annotated[str, msgspec.Meta(description="directory of manifests of static pods, or one file")] = (
        "/etc/podlane/manifests"
    )
    manifest_url: Annotated[
        str, msgspec.Meta(pattern="^(https?://.+)?$", description="URL of manifests of static pods; empty: none")
    ] = ""
    manifest_url_headers: Annotated[dict[str, str], msgspec.Meta(description="headers sent to that URL")] = {}
    socket: Annotated[str, msgspec.Meta(description="unix socket on which root submits static pods")] = (
        "/run/podlane/node-agent.sock"
    )
    pause_image: Annotated[str, msgspec.Meta(description="image of the sandbox container")] = MADE_HERE
    cluster_domain: Annotated[str, msgspec.Meta(description="domain of the cluster's names")] = "cluster.local"
    cluster_dns: Annotated[
        tuple[str, ...], msgspec.Meta(description="nameservers of the cluster, for pods; empty: their network's")
    ] = ()
    resolv_conf: Annotated[str, msgspec.Meta(description="resolv.conf of this host, for pods")] = "/etc/resolv.conf"
    seccomp_default: Annotated[
        bool, msgspec.Meta(description="whether containers that say nothing of seccomp have Docker's profile, not none")
    ] = False
    allowed_unsafe_sysctls: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=SYSCTL)], ...],
        msgspec.Meta(description="sysctls that pods may set besides the safe ones, also as net.*"),
    ] = ()
    cgroup_root: Annotated[str, msgspec.Meta(pattern="^/", description="control group above those of pods")] = "/"
    pod_pids_limit: Annotated[
        int, msgspec.Meta(ge=0, description="how many processes and threads a pod may have; 0: any number")
    ] = 0
    kube_reserved: Annotated[
        str, msgspec.Meta(description="kept from pods for this agent and Docker: cpu=100m,memory=200Mi")
    ] = ""
    system_reserved: Annotated[
        str, msgspec.Meta(description="kept from pods for all else: cpu=100m,memory=200Mi,ephemeral-storage=1Gi")
    ] = ""
    cpu_cfs_quota: Annotated[bool, msgspec.Meta(description="whether limits of CPU hold back a container")] = True
    max_pods: Annotated[int, msgspec.Meta(ge=1, description="how many pods the node takes")] = 110
    register_with_taints: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=TAINT)], ...],
        msgspec.Meta(description="taints of a node that registers, each KEY=VALUE:EFFECT"),
    ] = ()
    heartbeat_seconds: Annotated[float, msgspec.Meta(gt=0, description="time between two renewals of the lease")] = 10.0
    address: Annotated[str, msgspec.Meta(min_length=1, description="address on which the HTTPS server listens")] = (
        "0.0.0.0"
    )
    port: Annotated[int, msgspec.Meta(ge=1, le=65535, description="port of the HTTPS server")] = AGENT_PORT
    client_ca_file: Annotated[
        str, msgspec.Meta(description="authority of those who may call by certificate; empty: the kubeconfig's")
    ] = ""
    health_address: Annotated[str, msgspec.Meta(description="where /healthz, /readyz and /metrics listen")] = (
        "127.0.0.1:10248"
    )
    container_log_max_size: Annotated[
        str,
        msgspec.Meta(pattern=f"^{BYTES}$", description="size of a log file of a container"),
    ] = "10Mi"
    container_log_max_files: Annotated[int, msgspec.Meta(ge=2, description="log files kept for each container")] = 5
    pod_logs_dir: Annotated[str, msgspec.Meta(description="links to containers' logs, by pod")] = "/var/log/pods"
    container_logs_dir: Annotated[str, msgspec.Meta(description="links to containers' logs, by container")] = (
        "/var/log/containers"
    )
    maximum_dead_containers_per_container: Annotated[
        int, msgspec.Meta(ge=1, description="dead containers that are kept for each container of a pod")
    ] = 1
    minimum_container_ttl_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="how long a dead container stays in any case")
    ] = 0.0
    max_parallel_image_pulls: Annotated[int, msgspec.Meta(ge=1, description="images that are fetched at once")] = 1
    registry_pull_qps: Annotated[
        float, msgspec.Meta(ge=0, description="fetches of images that begin in a second, over time; 0: no limit")
    ] = 5.0
    registry_burst: Annotated[int, msgspec.Meta(ge=1, description="fetches of images that may begin together")] = 10
    image_pull_progress_deadline_seconds: Annotated[
        float, msgspec.Meta(gt=0, description="silence after which the fetch of an image is given up")
    ] = 60.0
    image_gc_high_threshold_percent: Annotated[
        int, msgspec.Meta(ge=0, le=100, description="fullness of Docker's disk at which unused images begin to go")
    ] = 85
    image_gc_low_threshold_percent: Annotated[
        int, msgspec.Meta(ge=0, le=100, description="fullness of Docker's disk down to which unused images go")
    ] = 80
    image_minimum_gc_age_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="how long an image stays in any case")
    ] = 120.0
    image_maximum_gc_age_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="after how long an unused image goes in any case; 0: never")
    ] = 0.0
    eviction_hard: Annotated[
        str, msgspec.Meta(description="below which amounts or percentages pods are evicted, by signal")
    ] = HARD
    eviction_soft: Annotated[
        str, msgspec.Meta(description="below which amounts pods are evicted after a grace period, by signal")
    ] = ""
    eviction_soft_grace_period: Annotated[
        str, msgspec.Meta(description="for how long a signal may be below its soft threshold: memory.available=1m30s")
    ] = ""
    eviction_max_pod_grace_period: Annotated[
        int, msgspec.Meta(ge=0, description="seconds that a pod has at most to end when a soft threshold evicts it")
    ] = 0
    eviction_pressure_transition_seconds: Annotated[
        float, msgspec.Meta(ge=0, description="how long the node is said to be short after it no longer is")
    ] = 300.0
    disk_scan_seconds: Annotated[
        float, msgspec.Meta(gt=0, description="time between two looks at the disk that pods with limits take")
    ] = 60.0
    runtime_request_timeout_seconds: Annotated[
        int, msgspec.Meta(ge=1, description="how long Docker may be silent when it is asked something")
    ] = 120
    log_level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$", description="what is logged")] = (
        "info"
    )

    def __post_init__(self) -> None:
        """Raises ValueError for what contradicts itself."""
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            raise ValueError("tlsCertFile, tlsPrivateKeyFile: found one without the other; both or none is accepted")
        if self.image_gc_low_threshold_percent > self.image_gc_high_threshold_percent:
            found = f"{self.image_gc_low_threshold_percent} above {self.image_gc_high_threshold_percent}"
            raise ValueError(f"imageGcLowThresholdPercent: found {found}; no more than the high threshold is accepted")
        try:
            node_status.parse_reserved(self.kube_reserved, self.system_reserved)
        except node_status.BadReservation as error:
            raise ValueError(f"kubeReserved, systemReserved: {error}") from None
        try:
            parse_thresholds(self.eviction_hard)
        except BadThreshold as error:
            raise ValueError(f"evictionHard: {error}") from None
        try:
            parse_soft_thresholds(self.eviction_soft, self.eviction_soft_grace_period)
        except BadThreshold as error:
            raise ValueError(f"evictionSoft, evictionSoftGracePeriod: {error}") from None
