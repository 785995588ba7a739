"""Two real nodes without Docker whose pods exchange real packets."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import NamedTuple, TypeVar

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from api.network.attach import NODE_AGENT, Attachment, AttachRequest
from api.network.types import HostSubnet, NetNamespace
from lab.process import LabError, run
from lab.topology import UNDERLAY_BRIDGE
from lab.underlay import kernel_has_datapath
from sdn.topology import mac_of
from tests.testbed import frames as packets
from tests.testbed.flow_dump import daemon_flows
from tests.testbed.isolation.world import PODS, PlannedPod, RunningPod
from tests.testbed.netns.appctl import call_appctl
from tests.testbed.netns.cluster import NetnsCluster, netns_lab
from tests.testbed.raw_socket import RawSocket
from tests.testbed.wait import DEADLINE_SECONDS

T = TypeVar("T")

_UPCALLS = re.compile(r"lookups: hit:\d+ missed:(\d+) lost:(\d+)")


class _Sent(NamedTuple):
    """A frame that is sent on a wire. The marker is part of it."""

    wire: RawSocket
    frame: bytes
    marker: bytes


class PacketWorld(NetnsCluster):
    """Use as a context manager; `pods` are added by `add`."""

    def __init__(self, prefix: str, third_octet: int, plugin: str = "ovs-multitenant") -> None:
        super().__init__(netns_lab(prefix, third_octet, 2, plugin))
        self.pods: dict[str, RunningPod] = {}
        self._wires: dict[str, RawSocket] = {}
        self._macs: dict[IPv4Address, int] = {}

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()
        super().__exit__()

    def add_project(self, name: str) -> None:
        """Create a project and wait for its VNID."""
        self.call_api(lambda client: client.create(Namespace(metadata=ObjectMeta(name=name))))

    def add(self, planned_pod: PlannedPod) -> Attachment:
        """Make a pod: a namespace, attached through the node's socket."""
        namespace = self.pod_namespace(planned_pod.name)
        if not Path(f"/run/netns/{namespace}").exists():
            run("ip", "netns", "add", namespace)
        request = AttachRequest(
            sandbox=planned_pod.name,
            netns=f"/run/netns/{namespace}",
            namespace=planned_pod.project,
            name=planned_pod.name,
            runtime=NODE_AGENT,
        )
        attachment = self.attach(planned_pod.node, request)
        address = IPv4Interface(attachment.ip).ip
        self.pods[planned_pod.name] = RunningPod(planned_pod.name, planned_pod.project, planned_pod.node, address)
        if planned_pod.name in self._wires:
            self._wires[planned_pod.name].close()
        self._wires[planned_pod.name] = RawSocket(namespace, "eth0")
        return attachment

    def adopt(self, planned_pod: PlannedPod, pid: int, address: IPv4Address) -> None:
        """Count a container, which Docker has connected itself, among the pods."""
        namespace = self.pod_namespace(planned_pod.name)
        run("ip", "netns", "attach", namespace, str(pid))
        self.pods[planned_pod.name] = RunningPod(planned_pod.name, planned_pod.project, planned_pod.node, address)
        self._wires[planned_pod.name] = RawSocket(namespace, "eth0")

    def attach(self, node: str, request: AttachRequest) -> Attachment:
        """Attach a sandbox on a node."""
        return self.call_cni_server(node, lambda network: network.attach(request))

    def sandboxes(self, node: str) -> frozenset[str]:
        """Return the sandboxes that are attached for the node agent."""
        return self.call_cni_server(node, lambda network: network.list_sandboxes())

    def forget(self, *names: str) -> None:
        """Pods that were detached by hand: their namespaces go."""
        for name in names:
            self.pods.pop(name)
            self._wires.pop(name).close()
            run("ip", "netns", "del", self.pod_namespace(name))

    def remove(self, name: str) -> None:
        """Detach a pod and delete its namespace."""
        pod = self.pods.pop(name)
        self._wires.pop(name).close()
        self.detach(pod.node, name)
        run("ip", "netns", "del", self.pod_namespace(name))

    def detach(self, node: str, sandbox: str) -> None:
        """Detach a sandbox on a node; it may be detached already."""
        self.call_cni_server(node, lambda network: network.detach(sandbox))

    def wire(self, name: str) -> RawSocket:
        """Return the raw socket in a pod."""
        return self._wires[name]

    def flows(self, node: str) -> list[str]:
        """Return the flows of br0 that the sdn daemon has written (`daemon_flows`)."""
        return daemon_flows(str(self.nodes[node].ovs / "br0.mgmt"))

    def has_flows(self, node: str, wanted: list[str]) -> bool:
        """Return whether br0 holds exactly these flows; False while the switch does not answer."""
        with contextlib.suppress(LabError):
            return self.flows(node) == wanted
        return False

    def vsctl(self, node: str, *words: str) -> str:
        """Run ovs-vsctl on a node's switch."""
        return run("ovs-vsctl", f"--db=unix:{self.nodes[node].ovs}/db.sock", *words)

    def in_node(self, node: str, *command: str) -> str:
        """Run a program in a node's network namespace."""
        return run("ip", "netns", "exec", self.nodes[node].namespace, *command)

    def log(self, node: str) -> str:
        """Return the log of the sdn daemon."""
        return (self.nodes[node].root / "log" / "sdn.log").read_text()

    def vnid(self, project: str) -> int:
        return self.call_api(lambda client: client.get(NetNamespace, project)).netid

    def node_address(self, node: str) -> IPv4Address:
        return self.nodes[node].address

    def gateway(self, node: str) -> IPv4Address:
        return IPv4Network(self.call_api(lambda client: client.get(HostSubnet, node)).subnet).network_address + 1

    def delivers(self, source: str, target: str, frame: bytes, marker: bytes) -> bool:
        """Return whether a frame arrives.

        A permitted pod sends a fence after the frame. When the fence has arrived, the frame would have arrived too.
        """
        self._wires[target].received()
        admins = ("admin-a", "admin-b") if self.pods[source].node == "node-1" else ("admin-b", "admin-a")
        sentry = next(name for name in admins if name != target)
        sent = _Sent(self._wires[source], frame, marker)
        return self._arrived(self._wires[target], sent, lambda: self._greet(sentry, target))

    def warm_up(self, first: str, other: str) -> None:
        """Send packets both ways, because the first packets between two nodes are lost while their switches resolve
        each other.
        """
        for source, target in ((first, other), (other, first)):
            self._greet(source, target)
            self._until_fenced(self._wires[target], lambda: self._greet(source, target))  # noqa: B023

    def _greet(self, source: str, target: str) -> bytes:
        running_pod, other, marker = self.pods[source], self.pods[target], packets.new_marker()
        body = packets.udp(running_pod.address, other.address, marker)
        self._wires[source].send(packets.ethernet(other.mac, running_pod.mac, packets.IPV4, body))
        return marker

    def _arrived(self, wire: RawSocket, sent: _Sent, fence: Callable[[], bytes]) -> bool:
        """Send a frame, and return whether it arrives before a second fence.

        A switch in user space polls its ports in turn, so one fence may overtake an earlier frame of another pod. A
        fence that is sent after the first one has arrived does not.

        In the kernel, a fence overtakes a frame that goes by way of ovs-vswitchd, because the datapath has no flow for
        it. Therefore the frame is sent again until no packet went that way.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            before = self._packets_without_flow()
            sent.wire.send(sent.frame)
            frames = [frame for _ in range(2) for frame in self._until_fenced(wire, fence)]
            if any(sent.marker in frame for frame in frames):
                return True
            if self._packets_without_flow() == before:
                return False
            assert time.monotonic() < deadline, "the datapath gets no flow for a packet"

    def _packets_without_flow(self) -> list[int]:
        """Return the number of packets on each node that the kernel has handed to ovs-vswitchd."""
        return [missed for missed, _ in self._upcalls()]

    def lost_packets(self) -> int:
        """Return the number of packets that ovs-vswitchd had no room for when the kernel handed them to it."""
        return sum(lost for _, lost in self._upcalls())

    def _upcalls(self) -> list[tuple[int, int]]:
        """Return how many packets had no flow in the kernel, and how many of them were lost; by node."""
        if not kernel_has_datapath():
            return []
        shown = (call_appctl(node.ovs / "ovs-vswitchd.ctl", "dpctl/show") for node in self.nodes.values())
        return [(int(missed), int(lost)) for text in shown for missed, lost in _UPCALLS.findall(text)]

    def _until_fenced(self, wire: RawSocket, fence: Callable[[], bytes]) -> list[bytes]:
        frames: list[bytes] = []
        fences = [fence()]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not any(fence_marker in frame for fence_marker in fences for frame in frames):
            assert time.monotonic() < deadline, "the fence does not arrive: the network does not work at all"
            frames += wire.received()
            if int((deadline - time.monotonic()) * 20) % 20 == 0:
                fences.append(fence())
            time.sleep(0.002)
        return frames

    def leaves_cluster(self, source: str, frame: bytes, marker: bytes) -> bool:
        node = self.nodes[self.pods[source].node]
        cable = RawSocket(None, node.veth)
        try:
            return self._arrived(cable, _Sent(self._wires[source], frame, marker), lambda: self._call_outside(source))
        finally:
            cable.close()

    def _call_outside(self, source: str) -> bytes:
        pod, marker = self.pods[source], packets.new_marker()
        gateway = mac_of(self.gateway(pod.node))
        body = packets.udp(pod.address, self.lab.site.outside, marker)
        self._wires[source].send(packets.ethernet(gateway, pod.mac, packets.IPV4, body))
        return marker

    def in_tunnel(self, sender: IPv4Address, node: str, vnid: int, frame: bytes) -> bytes:
        """Return a VXLAN packet as it would arrive over a node's cable.

        A switch in user space learns the MAC of `sender` from it, so a packet from a node has that node's MAC.
        """
        if not self._macs:
            self._macs = {lab_node.address: self._mac_of(name) for name, lab_node in self.nodes.items()}
        here = self.nodes[node].address
        body = packets.udp(sender, here, packets.vxlan(vnid, frame), port=4789)
        return packets.ethernet(self._macs[here], self._macs.get(sender, 0x020000000001), packets.IPV4, body)

    def _mac_of(self, node: str) -> int:
        device = "eth0" if kernel_has_datapath() else UNDERLAY_BRIDGE
        return int(self.in_node(node, "cat", f"/sys/class/net/{device}/address").strip().replace(":", ""), 16)

    def delivers_from_tunnel(
        self, sender: IPv4Address, node: str, vnid: int, target: str, frame: bytes, marker: bytes
    ) -> bool:
        cable = RawSocket(None, self.nodes[node].veth)
        try:
            self._wires[target].received()
            sent = _Sent(cable, self.in_tunnel(sender, node, vnid, frame), marker)
            return self._arrived(self._wires[target], sent, lambda: self._greet("admin-a", target))
        finally:
            cable.close()


C = TypeVar("C", bound=PacketWorld)


@contextlib.contextmanager
def start_world(cluster: C, places: tuple[PlannedPod, ...] = PODS) -> Iterator[C]:
    """Start a cluster with these pods and their projects, and wait until its nodes know each other. The pods include
    admin-a and admin-b.
    """
    with cluster as running:
        for project in dict.fromkeys(planned_pod.project for planned_pod in places if planned_pod.project != "default"):
            running.add_project(project)
        for planned_pod in places:
            running.add(planned_pod)
        running.warm_up("admin-a", "admin-b")
        yield running


def running_world(
    prefix: str, third_octet: int, places: tuple[PlannedPod, ...] = PODS
) -> contextlib.AbstractContextManager[PacketWorld]:
    """Start a cluster with Podlane's master."""
    return start_world(PacketWorld(prefix, third_octet), places)
