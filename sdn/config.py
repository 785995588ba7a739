"""Settings of the sdn daemon, and the identity of the node that follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from api.meta.names import dns_subdomain_error
from reconcile.config_schema import ListenAddress, LogLevel, address_problems, problem

DEFAULT_NODE_PORTS = 30000, 32767
"""The first and the last port of the default node port range."""

ALL_PORTS = "all"
"""The value of podToNodePorts with which pods reach every port of the nodes."""

DNS_PORTS = frozenset({("tcp", 53), ("udp", 53)})
"""Ports of nodes that pods always reach."""


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Connects the pods of this node to the cluster's overlay network and keeps projects apart."""

    node_name: Annotated[str, msgspec.Meta(description="name under which the node registers")]
    node_ip: Annotated[str, msgspec.Meta(description="underlay address of this node, on one of its links")]
    kubeconfig: Annotated[str, msgspec.Meta(description="kubeconfig with which the API server is reached")] = (
        "/etc/podlane/node.kubeconfig"
    )
    socket: Annotated[str, msgspec.Meta(description="unix socket for ADD, DEL, CHECK and STATUS")] = (
        "/run/podlane/sdn.sock"
    )
    state_dir: Annotated[str, msgspec.Meta(description="directory of saved DNS records")] = "/var/lib/podlane/sdn"
    ovs_rundir: Annotated[str, msgspec.Meta(description="directory of Open vSwitch's sockets")] = "/var/run/openvswitch"
    datapath_type: Annotated[
        Literal["auto", "system", "netdev"],
        msgspec.Meta(
            description="system: the kernel's; netdev: in user space; auto: the kernel's if its module is loaded"
        ),
    ] = "auto"
    cni_conf_dir: Annotated[
        str, msgspec.Meta(description="CNI configuration directory, usually /etc/cni/net.d; empty: write none")
    ] = ""
    docker_project: Annotated[
        str,
        msgspec.Meta(description="project of containers outside of any pod, which use lbr0; empty: no lbr0"),
    ] = ""
    docker_options_file: Annotated[str, msgspec.Meta(description="file for dockerd's options for lbr0")] = (
        "/run/podlane/docker-network"
    )
    proxy_mode: Annotated[
        Literal["nftables", "userspace"],
        msgspec.Meta(
            description="nftables: Open vSwitch and the kernel balance services; userspace: this daemon does",
        ),
    ] = "nftables"
    node_port_range: Annotated[
        str,
        msgspec.Meta(
            pattern="^[0-9]{1,5}-[0-9]{1,5}$",
            description="first and last node port, as the master has it",
            extra={"accepted": "FIRST-LAST such as 30000-32767"},
        ),
    ] = "30000-32767"
    pod_to_node_ports: Annotated[
        tuple[
            Annotated[
                str,
                msgspec.Meta(
                    pattern=f"^({ALL_PORTS}|[0-9]{{1,5}}/(tcp|udp|sctp))$",
                    extra={"accepted": f"PORT/tcp, PORT/udp, PORT/sctp or {ALL_PORTS}"},
                ),
            ],
            ...,
        ],
        msgspec.Meta(
            description="ports of nodes that pods may reach beside DNS, services and host ports, each PORT/PROTOCOL; "
            "all: every port"
        ),
    ] = ()
    cluster_domain: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$",
            description="domain of the cluster DNS at the gateway of pods; empty: no cluster DNS",
            extra={"accepted": "a DNS domain in lower case such as cluster.local"},
        ),
    ] = "cluster.local"
    resolv_conf: Annotated[
        str, msgspec.Meta(description="resolv.conf with the upstream name servers for all other names")
    ] = "/etc/resolv.conf"
    health_address: Annotated[ListenAddress, msgspec.Meta(description="address for /healthz, /readyz and /metrics")] = (
        "127.0.0.1:10249"
    )
    peer_probe_seconds: Annotated[
        float,
        msgspec.Meta(ge=0, description="time between two probes of the tunnels to some of the peers; 0: no probes"),
    ] = 10.0
    resync_seconds: Annotated[float, msgspec.Meta(gt=0, description="longest time between two full comparisons")] = 30.0
    log_level: Annotated[LogLevel, msgspec.Meta(description="lowest level logged")] = "info"

    def __post_init__(self) -> None:
        """Validate what types and patterns do not. Raises ValueError with one line for each problem."""
        if problems := tuple(_config_problems(self)):
            raise ValueError("\n".join(problems))


def _config_problems(settings: Settings) -> Iterator[str]:
    if error := dns_subdomain_error(settings.node_name):
        yield problem("nodeName", settings.node_name, error)
    yield from address_problems("nodeIp", (settings.node_ip,), version=4)
    first, last = _first_and_last_port(settings.node_port_range)
    if not 0 < first <= last < 1 << 16:
        yield problem("nodePortRange", settings.node_port_range, "two ports from 1 to 65535 in this order are accepted")
    for number, text in enumerate(settings.pod_to_node_ports):
        if text == ALL_PORTS and len(settings.pod_to_node_ports) > 1:
            yield problem(f"podToNodePorts[{number}]", text, "it is accepted alone, and ports without it")
        if text != ALL_PORTS and not 0 < _protocol_and_port(text)[1] < 1 << 16:
            yield problem(f"podToNodePorts[{number}]", text, "ports from 1 to 65535 are accepted")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """This node: name, underlay address and settings that the desired network depends on.

    `datapath_type` is "system" (the kernel's) or "netdev" (userspace). `docker_project` is the project of containers
    outside of any pod; if it is empty, Docker gets no bridge of ours.
    `node_ports` are the first and the last port that services may have on every node. `open_ports` are the ports of
    nodes that pods may reach, as pairs of a protocol, in lower case, and a number; None if they may reach all.
    """

    name: str
    address: IPv4Address
    datapath_type: str
    docker_project: str = ""
    node_ports: tuple[int, int] = DEFAULT_NODE_PORTS
    open_ports: frozenset[tuple[str, int]] | None = DNS_PORTS


def datapath_type(setting: str) -> str:
    """Return the datapath type: with `auto`, the kernel's datapath if its module is loaded, else the userspace one."""
    if setting != "auto":
        return setting
    return "system" if Path("/sys/module/openvswitch").exists() else "netdev"


def node_identity(settings: Settings) -> NodeIdentity:
    """Return the identity of the node from its settings."""
    return NodeIdentity(
        settings.node_name,
        IPv4Address(settings.node_ip),
        datapath_type(settings.datapath_type),
        settings.docker_project,
        _first_and_last_port(settings.node_port_range),
        _open_ports(settings.pod_to_node_ports),
    )


def _open_ports(texts: tuple[str, ...]) -> frozenset[tuple[str, int]] | None:
    return None if ALL_PORTS in texts else DNS_PORTS | frozenset(map(_protocol_and_port, texts))


def _protocol_and_port(text: str) -> tuple[str, int]:
    number, _, protocol = text.partition("/")
    return protocol, int(number)


def _first_and_last_port(port_range: str) -> tuple[int, int]:
    first, _, last = port_range.partition("-")
    return int(first), int(last)
