"""Two real nodes without Docker: Open vSwitch, master and sdn daemons in namespaces, pods that are bare namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import TypeVar

from api.attach import NODE_AGENT, Attachment, AttachRequest
from api.certificates import node_kubeconfig
from api.client import Client, ClientError
from api.kubeconfig import BadKubeconfig, Kubeconfig
from api.objects import HostSubnet, Namespace, NetNamespace, Node, NodeAddress, NodeStatus, ObjectMeta
from lab import underlay
from lab.command import LabError, run
from lab.down import bring_down
from lab.topology import OVS_SCHEMA, Lab, LabNode, Process, Site, daemon_processes, master_process, switch_processes
from node_agent.drivers.network import PodNetwork
from reconcile.errors import NotReady
from sdn.view import mac_of
from tests import packets
from tests.net.wire import Wire
from tests.world import PLACES, Inhabitant, Place

T = TypeVar("T")

DEADLINE_SECONDS = 30.0


def wait_until(holds: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS) -> T:
    """Look again and again until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.02)


class NetCluster:
    """Use as a context manager; `pods` are added by `add`."""

    def __init__(self, prefix: str, third_octet: int, plugin: str = "ovs-multitenant") -> None:
        self._site = Site(prefix, IPv4Network(f"10.245.{third_octet}.0/24"))
        self._state = Path(f"/tmp/{prefix}-{os.getpid()}")
        self.lab = Lab(self._site, self._state, Path(sys.executable).parent, 2, plugin)
        self.pods: dict[str, Inhabitant] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._specs: dict[str, Process] = {}
        self._wires: dict[str, Wire] = {}
        self._macs: dict[IPv4Address, int] = {}

    @property
    def nodes(self) -> dict[str, LabNode]:
        return {node.name: node for node in self.lab.nodes}

    def __enter__(self) -> NetCluster:
        self._sweep()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()
        for process in self._running.values():
            process.kill()
            process.wait()
        self._sweep()
        shutil.rmtree(self._state, ignore_errors=True)

    def _sweep(self) -> None:
        """Also of a run that was killed."""
        for namespace in Path("/run/netns").glob(f"{self._site.prefix}-pod-*"):
            run("ip", "netns", "del", namespace.name)
        bring_down(self._state, self._site)

    def _build(self) -> None:
        self._state.mkdir()
        self.lab.root.symlink_to(self._state)
        (self.lab.root / "master").mkdir()
        for node in self.lab.nodes:
            node.ovs.mkdir(parents=True)
            (node.root / "log").mkdir()
            run("ovsdb-tool", "create", str(node.ovs / "conf.db"), OVS_SCHEMA)
        underlay.make(self.lab)
        self._specs["master"] = master_process(self.lab)
        self.start("master")
        for node in self.lab.nodes:
            database, switch = switch_processes(node)
            self._specs |= {f"{node.name} ovsdb-server": database, f"{node.name} ovs-vswitchd": switch}
            self._specs[f"{node.name} sdn"] = daemon_processes(self.lab, node)[0]
            self.start(f"{node.name} ovsdb-server")
            wait_until(lambda node=node: (node.ovs / "db.sock").exists(), "ovsdb-server")  # type: ignore[misc]
            self.start_switch(node.name)
        wait_until(self.master_answers, "the master")
        self.ask(self._register)
        for node in self.lab.nodes:
            self.start(f"{node.name} sdn")
        for node in self.lab.nodes:
            wait_until(lambda node=node: self.network_ready(node.name), f"{node.name}'s network")  # type: ignore[misc]

    def specification(self, name: str) -> Process:
        """How a process of this cluster is started."""
        return self._specs[name]

    def start(self, name: str, instead: Process | None = None) -> None:
        """Start a process of this cluster by name, for example `node-1 sdn`, or another one in its place."""
        spec = instead or self._specs[name]
        with spec.log_file.open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{spec.namespace}", *spec.command],
                env={**os.environ, **dict(spec.environment)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_switch(self, node: str) -> None:
        """Start ovs-vswitchd and give the node its address again."""
        self.start(f"{node} ovs-vswitchd")
        underlay.connect(self.nodes[node], time.monotonic() + DEADLINE_SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL a process of this cluster."""
        process = self._running[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ask(self, act: Callable[[Client], Awaitable[T]]) -> T:
        """Do something as the administrator."""

        async def asking() -> T:
            async with Client(Kubeconfig.load(self.lab.kubeconfig)) as client:
                return await act(client)

        return asyncio.run(asking())

    def master_answers(self) -> bool:
        """Whether it does."""
        try:
            return bool(self.ask(lambda client: client.get(Namespace, "default")))
        except (ClientError, BadKubeconfig):
            return False

    async def _register(self, client: Client) -> None:
        for node in self.lab.nodes:
            text = await node_kubeconfig(client, Kubeconfig.load(self.lab.kubeconfig), node.name)
            node.kubeconfig.write_text(text)
            address = NodeAddress(type="InternalIP", address=str(node.address))
            status = NodeStatus(addresses=(address,))
            await client.create(Node(metadata=ObjectMeta(name=node.name), status=status))

    def network_ready(self, node: str) -> bool:
        """Whether the sdn daemon says that pods can be attached."""
        try:
            return self._on_socket(self.nodes[node], lambda network: network.status()).ready
        except NotReady:
            return False

    def _on_socket(self, node: LabNode, act: Callable[[PodNetwork], Awaitable[T]]) -> T:
        async def asking() -> T:
            async with PodNetwork(str(node.sdn_socket)) as network:
                return await act(network)

        return asyncio.run(asking())

    def add_project(self, name: str) -> None:
        """Make a project and wait for its lane."""
        self.ask(lambda client: client.create(Namespace(metadata=ObjectMeta(name=name))))

    def add(self, place: Place) -> Attachment:
        """Make a pod: a namespace, attached through the node's socket."""
        namespace = self.pod_namespace(place.name)
        if not Path(f"/run/netns/{namespace}").exists():
            run("ip", "netns", "add", namespace)
        request = AttachRequest(
            sandbox=place.name,
            netns=f"/run/netns/{namespace}",
            namespace=place.project,
            name=place.name,
            runtime=NODE_AGENT,
        )
        attachment = self.attach(place.node, request)
        address = IPv4Interface(attachment.ip).ip
        self.pods[place.name] = Inhabitant(place.name, place.project, place.node, address)
        if place.name in self._wires:
            self._wires[place.name].close()
        self._wires[place.name] = Wire(namespace, "eth0")
        return attachment

    def adopt(self, place: Place, pid: int, address: IPv4Address) -> None:
        """Count a container, which Docker has connected itself, among the pods."""
        namespace = self.pod_namespace(place.name)
        run("ip", "netns", "attach", namespace, str(pid))
        self.pods[place.name] = Inhabitant(place.name, place.project, place.node, address)
        self._wires[place.name] = Wire(namespace, "eth0")

    def attach(self, node: str, request: AttachRequest) -> Attachment:
        """Ask a node to attach a sandbox."""
        return self._on_socket(self.nodes[node], lambda network: network.attach(request))

    def sandboxes(self, node: str) -> frozenset[str]:
        """What is attached on behalf of the node agent."""
        return self._on_socket(self.nodes[node], lambda network: network.sandboxes())

    def lives(self, name: str) -> bool:
        """Whether a process of this cluster runs."""
        return self._running[name].poll() is None

    def is_running_as(self, name: str, word: str) -> bool:
        """Whether it runs with this word in its command."""
        return self.lives(name) and word in map(str, self._running[name].args)  # type: ignore[arg-type]

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
        """Ask a node to detach a sandbox, be it there or not."""
        self._on_socket(self.nodes[node], lambda network: network.detach(sandbox))

    def wire(self, name: str) -> Wire:
        """The raw socket in a pod."""
        return self._wires[name]

    def pod_namespace(self, name: str) -> str:
        """The network namespace of a pod."""
        return f"{self._site.prefix}-pod-{name}"

    def flows(self, node: str) -> list[str]:
        """What br0 holds, without counters, as ovs-ofctl prints it."""
        socket_path = str(self.nodes[node].ovs / "br0.mgmt")
        dump = run("ovs-ofctl", "-O", "OpenFlow14", "--no-stats", "dump-flows", socket_path)
        return sorted(line.strip() for line in dump.splitlines())

    def has_flows(self, node: str, wanted: list[str]) -> bool:
        """Whether br0 holds exactly these; also False while the switch does not answer."""
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
        """The sdn daemon's log."""
        return (self.nodes[node].root / "log" / "sdn.log").read_text()

    def vnid(self, project: str) -> int:
        return self.ask(lambda client: client.get(NetNamespace, project)).netid

    def node_address(self, node: str) -> IPv4Address:
        return self.nodes[node].address

    def gateway(self, node: str) -> IPv4Address:
        return IPv4Network(self.ask(lambda client: client.get(HostSubnet, node)).subnet).network_address + 1

    def sees(self, source: str, target: str, frame: bytes, mark: bytes) -> bool:
        """A fence, sent afterwards by a pod that may, tells when the frame would have been there."""
        self._wires[target].received()
        self._wires[source].send(frame)
        admins = ("admin-a", "admin-b") if self.pods[source].node == "node-1" else ("admin-b", "admin-a")
        sentry = next(name for name in admins if name != target)
        return self._arrived(self._wires[target], mark, lambda: self._greet(sentry, target))

    def warm_up(self, one: str, other: str) -> None:
        """The first packets between two nodes are lost while their switches look each other up."""
        for source, target in ((one, other), (other, one)):
            mark = self._greet(source, target)
            self._arrived(self._wires[target], mark, lambda: self._greet(source, target))  # noqa: B023

    def _greet(self, source: str, target: str) -> bytes:
        one, other, mark = self.pods[source], self.pods[target], packets.cookie()
        body = packets.udp(one.address, other.address, mark)
        self._wires[source].send(packets.ethernet(other.mac, one.mac, packets.IPV4, body))
        return mark

    def _arrived(self, wire: Wire, mark: bytes, fence: Callable[[], bytes]) -> bool:
        frames: list[bytes] = []
        fences = [fence()]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not any(one in frame for one in fences for frame in frames):
            assert time.monotonic() < deadline, "the fence does not arrive: the network does not work at all"
            frames += wire.received()
            if int((deadline - time.monotonic()) * 20) % 20 == 0:
                fences.append(fence())
            time.sleep(0.002)
        return any(mark in frame for frame in frames)

    def leaves(self, source: str, frame: bytes, mark: bytes) -> bool:
        node = self.nodes[self.pods[source].node]
        cable = Wire(None, node.cable)
        try:
            self._wires[source].send(frame)
            return self._arrived(cable, mark, lambda: self._call_outside(source))
        finally:
            cable.close()

    def _call_outside(self, source: str) -> bytes:
        pod, mark = self.pods[source], packets.cookie()
        gateway = mac_of(self.gateway(pod.node))
        body = packets.udp(pod.address, self._site.outside, mark)
        self._wires[source].send(packets.ethernet(gateway, pod.mac, packets.IPV4, body))
        return mark

    def in_tunnel(self, sender: IPv4Address, node: str, vnid: int, frame: bytes) -> bytes:
        """A VXLAN packet as it would come over a node's cable.

        A switch in user space learns from it which MAC `sender` has, so a node's is its own.
        """
        if not self._macs:
            self._macs = {one.address: self._mac_of(name) for name, one in self.nodes.items()}
        here = self.nodes[node].address
        body = packets.udp(sender, here, packets.vxlan(vnid, frame), port=4789)
        return packets.ethernet(self._macs[here], self._macs.get(sender, 0x020000000001), packets.IPV4, body)

    def _mac_of(self, node: str) -> int:
        return int(self.in_node(node, "cat", "/sys/class/net/brphy/address").strip().replace(":", ""), 16)

    def tunnelled(self, sender: IPv4Address, node: str, vnid: int, target: str, frame: bytes, mark: bytes) -> bool:
        cable = Wire(None, self.nodes[node].cable)
        try:
            self._wires[target].received()
            cable.send(self.in_tunnel(sender, node, vnid, frame))
            return self._arrived(self._wires[target], mark, lambda: self._greet("admin-a", target))
        finally:
            cable.close()


@contextlib.contextmanager
def inhabited(prefix: str, third_octet: int, places: tuple[Place, ...] = PLACES) -> Iterator[NetCluster]:
    """A cluster with these pods and their projects, whose nodes have met; admin-a and admin-b are among them."""
    with NetCluster(prefix, third_octet) as running:
        for project in dict.fromkeys(place.project for place in places if place.project != "default"):
            running.add_project(project)
        for place in places:
            running.add(place)
        running.warm_up("admin-a", "admin-b")
        yield running
