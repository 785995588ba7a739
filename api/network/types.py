"""ClusterNetwork, HostSubnet, NetNamespace and PodAddress; the annotation that requests a change of VNID. Pure.

A request is taken away in the write that gives the VNID.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from api.core.pod import FINAL_PHASES
from api.meta.types import Object, Value

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


ASSIGN_SUBNET = "pod.network.openshift.io/assign-subnet"
"""Annotation of a HostSubnet made by hand: the master gives it a subnet, and takes the annotation away."""

PLUGIN_SUBNET = "redhat/openshift-ovs-subnet"
PLUGIN_MULTITENANT = "redhat/openshift-ovs-multitenant"

CHANGE_NETWORK = "pod.network.openshift.io/multitenant.change-network"
JOINED_ANNOTATION = "network.podlane.io/joined"
"""Annotation of a NetNamespace that was joined to another: whose lane it is in. Written with the VNID."""

ACCEPTED = '"global", "isolate" and "join:NAMESPACE" are accepted'


class BadChangeNetwork(Exception):
    """`str(error)` says what is accepted."""


@dataclass(frozen=True, slots=True)
class ChangeNetworkRequest:
    """`verb` is global (VNID 0), isolate (a VNID that nobody else has) or join (that of the namespace `target`)."""

    verb: str
    target: str = ""

    def __str__(self) -> str:
        """As the annotation has it."""
        return f"{self.verb}:{self.target}" if self.target else self.verb


def parse_change_network(text: str) -> ChangeNetworkRequest:
    """The annotation's value. Raises BadRequest."""
    verb, colon, target = text.partition(":")
    if (verb in {"global", "isolate"} and not colon) or (verb == "join" and target):
        return ChangeNetworkRequest(verb, target)
    raise BadChangeNetwork(ACCEPTED)


def vnid_owner(lane: NetNamespace) -> str:
    """The project to which the VNID was given: its own name, unless it was joined to another."""
    return lane.metadata.annotations.get(JOINED_ANNOTATION, lane.metadata.name)


class PodAddress(Object, frozen=True):
    """A pod, as far as services go by it: `phase` and `ip` of its status, and whether it is in its node's network."""

    API_VERSION = "podlane.io/v1"
    KIND = "PodAddress"

    phase: str = ""
    ip: str = ""
    host_network: bool = False


class _SlimSpec(Value, frozen=True):
    host_network: bool = False


class _SlimStatus(Value, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class SlimPod(Object, frozen=True):
    """The same of a Pod, of an API server that has no PodAddresses."""

    API_VERSION = "v1"
    KIND = "Pod"

    spec: _SlimSpec = _SlimSpec()
    status: _SlimStatus = _SlimStatus()


def address_of(pod: SlimPod) -> PodAddress:
    """What a PodAddress would say."""
    return PodAddress(
        metadata=pod.metadata, phase=pod.status.phase, ip=pod.status.pod_ip, host_network=pod.spec.host_network
    )


def owned_address(pod: PodAddress) -> str:
    """The address that is the pod's own, as long as it lives; empty if there is none."""
    return "" if pod.host_network or pod.phase in FINAL_PHASES else pod.ip
