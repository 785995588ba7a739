"""What an operator may say to the node agent."""

from __future__ import annotations

from typing import Annotated

import msgspec

TAINT = "^[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$"


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Registers this host as a node and keeps the containers of its pods running."""

    node_name: Annotated[str, msgspec.Meta(min_length=1, description="name under which the node registers")]
    node_ip: Annotated[str, msgspec.Meta(min_length=1, description="address under which others reach this node")]
    kubeconfig: Annotated[str, msgspec.Meta(description="file that leads to the master")] = (
        "/etc/podlane/node.kubeconfig"
    )
    state_dir: Annotated[str, msgspec.Meta(description="where volumes of pods are kept")] = (
        "/var/lib/podlane/node-agent"
    )
    docker_socket: Annotated[str, msgspec.Meta(description="unix socket of Docker")] = "/var/run/docker.sock"
    sdn_socket: Annotated[str, msgspec.Meta(description="unix socket of the sdn daemon")] = "/run/podlane/sdn.sock"
    manifest_dir: Annotated[str, msgspec.Meta(description="directory of manifests of static pods")] = (
        "/etc/podlane/manifests"
    )
    pause_image: Annotated[str, msgspec.Meta(description="image of the sandbox container")] = "podlane/pause"
    cluster_domain: Annotated[str, msgspec.Meta(description="domain of the cluster's names")] = "cluster.local"
    cluster_dns: Annotated[tuple[str, ...], msgspec.Meta(description="nameservers of the cluster, for pods")] = ()
    resolv_conf: Annotated[str, msgspec.Meta(description="resolv.conf of this host, for pods")] = "/etc/resolv.conf"
    cgroup_root: Annotated[str, msgspec.Meta(pattern="^/", description="control group above those of pods")] = "/"
    max_pods: Annotated[int, msgspec.Meta(ge=1, description="how many pods the node takes")] = 110
    register_with_taints: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=TAINT)], ...],
        msgspec.Meta(description="taints of a node that registers, each KEY=VALUE:EFFECT"),
    ] = ()
    heartbeat_seconds: Annotated[float, msgspec.Meta(gt=0, description="time between two renewals of the lease")] = 10.0
    health_address: Annotated[str, msgspec.Meta(description="where /healthz, /readyz and /metrics listen")] = (
        "127.0.0.1:10248"
    )
    log_level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$", description="what is logged")] = (
        "info"
    )
