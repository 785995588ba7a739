"""Changes of projects, nodes and the underlay while pods run."""

from __future__ import annotations

from dataclasses import replace

from api.core.node import Namespace, Node, NodeAddress, NodeStatus
from api.meta.types import ObjectMeta
from api.network.types import HostSubnet, NetNamespace
from tests.testbed.isolation.world import PlannedPod, arrives, reaches
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.wait import wait_until


def test_pod_mtu_follows_the_underlay(cluster: PacketWorld) -> None:
    process = cluster.specification("node-1 sdn")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn", replace(process, command=(*process.command, "--resync-seconds", "0.3")))
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")

    def mtu(device: str) -> int:
        return int(cluster.in_node("node-1", "cat", f"/sys/class/net/{device}/mtu"))

    before = mtu("brphy")
    for base in (before - 100, before):
        cluster.vsctl("node-1", "set", "interface", "brphy", f"mtu_request={base}")
        wait_until(lambda base=base: mtu("tun0") == base - 50, f"tun0 follows {base}")  # type: ignore[misc]
        assert cluster.add(PlannedPod("red-late", "red", "node-1")).mtu == base - 50
        cluster.remove("red-late")
    cluster.vsctl("node-1", "clear", "interface", "brphy", "mtu_request")
    cluster.kill("node-1 sdn")
    cluster.start("node-1 sdn")
    wait_until(lambda: cluster.network_ready("node-1"), "the daemon")


def test_pods_of_a_deleted_project_are_disconnected(cluster: PacketWorld) -> None:
    cluster.add_project("doomed")
    for name, node in (("doomed-a", "node-1"), ("doomed-b", "node-1")):
        cluster.add(PlannedPod(name, "doomed", node))
    assert reaches(cluster, "doomed-a", "doomed-b")
    cluster.call_api(lambda client: client.delete(Namespace, "doomed"))

    def is_gone() -> bool:
        net_namespaces = cluster.call_api(lambda client: client.list(NetNamespace)).items
        address = str(cluster.pods["doomed-a"].address)
        names = {net_namespace.netname for net_namespace in net_namespaces}
        return "doomed" not in names and not any(address in flow for flow in cluster.flows("node-1"))

    wait_until(is_gone, "the NetNamespace and the flows of its pods are gone")
    assert not reaches(cluster, "doomed-a", "admin-a")
    for name in ("doomed-a", "doomed-b"):
        cluster.remove(name)


def test_new_node_becomes_a_peer_and_a_deleted_node_stops_being_one(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1")
    address = NodeAddress(type="InternalIP", address="10.245.15.99")
    newcomer = Node(metadata=ObjectMeta(name="node-9"), status=NodeStatus(addresses=(address,)))
    cluster.call_api(lambda client: client.create(newcomer))
    wait_until(lambda: any("10.245.15.99" in flow for flow in cluster.flows("node-1")), "the peer's flows")
    subnet = cluster.call_api(lambda client: client.get(HostSubnet, "node-9")).subnet
    assert any(f"nw_dst={subnet}" in flow for flow in cluster.flows("node-1"))
    cluster.call_api(lambda client: client.delete(Node, "node-9"))
    wait_until(lambda: cluster.has_flows("node-1", before), "the peer's flows are gone")


def test_node_with_a_changed_address_keeps_its_subnet(cluster: PacketWorld) -> None:
    before = cluster.flows("node-1")
    subnet = cluster.call_api(lambda client: client.get(HostSubnet, "node-2")).subnet
    old = str(cluster.node_address("node-2"))

    def moved_to(address: str) -> None:
        reported = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        cluster.call_api(lambda client: client.patch_status(Node, "node-2", "", reported))
        wait_until(lambda: any(f"set_field:{address}->tun_dst" in flow for flow in cluster.flows("node-1")), address)
        assert cluster.call_api(lambda client: client.get(HostSubnet, "node-2")).subnet == subnet

    moved_to("10.245.15.77")
    moved_to(old)
    wait_until(lambda: cluster.has_flows("node-1", before), "the flows are as before")
    wait_until(lambda: cluster.network_ready("node-2"), "node-2 has its address again")
    wait_until(lambda: arrives(cluster, "admin-a", "admin-b"), "packets")
