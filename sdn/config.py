"""Settings of the sdn daemon, and the identity of the node that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated

import msgspec

from sdn.topology import NODE_PORTS


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Connects the pods of this node to the cluster's overlay network and keeps projects apart."""

    node_name: Annotated[str, msgspec.Meta(description="name under which the node registers")]
    node_ip: Annotated[str, msgspec.Meta(description="address of this node under the tunnels; on a local link")]
    kubeconfig: Annotated[str, msgspec.Meta(description="file that leads to the master")] = (
        "/etc/podlane/node.kubeconfig"
    )
    socket: Annotated[str, msgspec.Meta(description="unix socket that serves ADD, DEL, CHECK and STATUS")] = (
        "/run/podlane/sdn.sock"
    )
    state_dir: Annotated[str, msgspec.Meta(description="where names are kept for a start without the master")] = (
        "/var/lib/podlane/sdn"
    )
    ovs_rundir: Annotated[str, msgspec.Meta(description="where Open vSwitch has its sockets")] = "/var/run/openvswitch"
    datapath_type: Annotated[
        str, msgspec.Meta(pattern="^(auto|system|netdev)$", description="auto, system, netdev")
    ] = "auto"
    cni_conf_dir: Annotated[
        str, msgspec.Meta(description="where runtimes look for CNI networks, usually /etc/cni/net.d; empty: tell none")
    ] = ""
    docker_project: Annotated[
        str,
        msgspec.Meta(
            description="project in whose lane containers outside of any pod are, through lbr0; empty: make no lbr0"
        ),
    ] = ""
    docker_options_file: Annotated[str, msgspec.Meta(description="where dockerd's options for lbr0 are written")] = (
        "/run/podlane/docker-network"
    )
    proxy_mode: Annotated[
        str,
        msgspec.Meta(
            pattern="^(nftables|userspace)$",
            description="nftables: services are served in switch and kernel; userspace: by this daemon itself",
        ),
    ] = "nftables"
    node_port_range: Annotated[
        str,
        msgspec.Meta(pattern="^[0-9]{1,5}-[0-9]{1,5}$", description="first and last node port, as the master has it"),
    ] = "30000-32767"
    cluster_domain: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$",
            description="domain of the cluster's names, which pods ask for at their gateway; empty: tell none",
        ),
    ] = "cluster.local"
    resolv_conf: Annotated[
        str, msgspec.Meta(description="resolv.conf of this host, whose servers are asked for all other names")
    ] = "/etc/resolv.conf"
    health_address: Annotated[str, msgspec.Meta(description="where /healthz, /readyz and /metrics listen")] = (
        "127.0.0.1:10249"
    )
    resync_seconds: Annotated[float, msgspec.Meta(gt=0, description="longest time between two looks at everything")] = (
        30.0
    )
    log_level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$", description="what is logged")] = (
        "info"
    )


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Which node this is. `datapath_type` is "system" or "netdev".

    `docker_project` is the project of containers outside of any pod; empty: Docker gets no bridge of ours.
    `node_ports` are the first and the last port that services may have on every node.
    """

    name: str
    address: IPv4Address
    datapath_type: str
    docker_project: str = ""
    node_ports: tuple[int, int] = NODE_PORTS


def datapath_type(wish: str) -> str:
    """With `auto`, the kernel's datapath where the kernel has it, else the one in user space."""
    if wish != "auto":
        return wish
    return "system" if Path("/sys/module/openvswitch").exists() else "netdev"


def node_identity(settings: Settings) -> NodeIdentity:
    """Return the identity of the node from its settings."""
    first, _, last = settings.node_port_range.partition("-")
    return NodeIdentity(
        settings.node_name,
        IPv4Address(settings.node_ip),
        datapath_type(settings.datapath_type),
        settings.docker_project,
        (int(first), int(last)),
    )
