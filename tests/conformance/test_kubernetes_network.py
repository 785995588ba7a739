"""Our pod network in a Kubernetes: subnets and VNIDs are its objects, and projects are isolated."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from api.client.client import ApiError, Client, Forbidden, NotFound
from api.client.kubeconfig import Kubeconfig
from api.core.node import Lease, Namespace, Node, NodeAddress, NodeStatus
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from api.network.conflicts import CURSORS_ANNOTATION
from api.network.queries import NodeQuery
from api.network.types import HostSubnet, NetNamespace
from master.network_controller.leader_election import NAMESPACE
from master.resources.scheme import BY_KIND
from tests.conformance.build import CONTROL_PLANE, missing
from tests.conformance.kubernetes_network import MANIFESTS, NETWORK, StockCluster
from tests.testbed.isolation.checks import *  # noqa: F403
from tests.testbed.isolation.world import PlannedPod, arrives, reaches
from tests.testbed.netns.packet_world import start_world
from tests.testbed.netns.services import answering, call, create_service, register, wait_for_answer
from tests.testbed.podlane_cli import podlane_network
from tests.testbed.wait import wait_until

LACKING = missing(CONTROL_PLANE)
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not built ({', '.join(LACKING)}); `make conformance` builds it")

RED, BLUE = ("red-a", "red-c"), ("blue-a", "blue-b")
PAIRS = [pair for red_pod in RED for other in BLUE for pair in ((red_pod, other), (other, red_pod))]


@pytest.fixture(scope="module")
def world() -> Iterator[StockCluster]:
    with start_world(StockCluster("podstkn", 51)) as cluster:
        yield cluster


def settle(world: StockCluster, together: bool) -> None:
    """Wait until red and blue reach each other in both directions, or in none. Each always reaches itself."""
    wait_until(lambda: {arrives(world, *pair) for pair in PAIRS} == {together}, f"together: {together}")
    assert {reaches(world, *pair) for pair in PAIRS} == {together}
    assert reaches(world, *RED)
    assert reaches(world, *BLUE)


def ignores(world: StockCluster, node: str, name: str) -> bool:
    return f'object="{name}"' in world.log(node)


def vnid_of(world: StockCluster, project: str) -> int:
    """-1 while it has none."""
    return world.vnids().get(project, -1)


def assigned_vnid(world: StockCluster, project: str) -> int:
    """Return the VNID of a project, as soon as it has one."""
    wait_until(lambda: vnid_of(world, project) >= 0, f"{project} has a VNID")
    return vnid_of(world, project)


def test_subnets_and_vnids_equal_those_of_our_own_master(world: StockCluster) -> None:
    vnids = world.vnids()
    assert {vnids[name] for name in ("default", "kube-system", "kube-public", "kube-node-lease")} == {0}
    assert sorted(vnids[name] for name in ("red", "blue")) == [10, 11]
    rows = world.kubectl("get", "hostsubnets", "--no-headers").splitlines()
    assert [line.split()[3] for line in rows] == ["10.128.0.0/23", "10.128.2.0/23"]


@pytest.mark.parametrize("kind", ["ClusterNetwork", "HostSubnet", "NetNamespace"])
def test_kubectl_tables_have_the_columns_of_our_own_master(world: StockCluster, kind: str) -> None:
    resource = BY_KIND[kind]
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"

    async def ask(client: Client) -> bytes:
        path = f"/apis/network.openshift.io/v1/{resource.plural}"
        return await client.request("GET", path, headers=[("Accept", accept)])

    columns = json.loads(world.call_api(ask))["columnDefinitions"]
    assert [(column["name"], column["type"]) for column in columns] == [
        (column.name, column.type) for column in resource.columns
    ]


def test_running_pods_follow_vnid_changes(world: StockCluster) -> None:
    settle(world, together=False)
    for words, together in (
        (("join", "blue", "--to", "red"), True),
        (("isolate", "blue"), False),
        (("global", "blue"), True),
        (("isolate", "blue"), False),
    ):
        podlane_network(world.lab.kubeconfig, *words)
        settle(world, together)


def test_default_namespace_stays_global(world: StockCluster) -> None:
    world.kubectl("annotate", "netnamespace", "default", "pod.network.openshift.io/multitenant.change-network=join:red")
    wait_until(lambda: "default stays global" in world.process_log(NETWORK), "the controllers say so")
    assert vnid_of(world, "default") == 0
    world.kubectl("annotate", "netnamespace", "default", "pod.network.openshift.io/multitenant.change-network-")


def test_deleted_project_frees_its_vnid_which_is_not_reused_at_once(world: StockCluster) -> None:
    world.kubectl("create", "namespace", "brief")
    first = assigned_vnid(world, "brief")
    world.kubectl("delete", "namespace", "brief")
    wait_until(lambda: vnid_of(world, "brief") < 0, "no VNID")
    world.kubectl("create", "namespace", "brief")
    assert assigned_vnid(world, "brief") == first + 1
    world.kubectl("delete", "namespace", "brief", "--wait=false")


def test_node_gets_a_host_subnet_and_loses_it_when_deleted(world: StockCluster) -> None:
    address = NodeStatus(addresses=(NodeAddress(type="InternalIP", address="10.245.51.77"),))

    async def come(client: Client) -> None:
        await client.create(Node(metadata=ObjectMeta(name="far"), status=address))

    async def subnet(client: Client) -> str:
        try:
            return (await client.get(HostSubnet, "far")).subnet
        except NotFound:
            return ""

    world.call_api(come)
    first = wait_until(lambda: world.call_api(subnet), "a subnet")
    wait_until(lambda: any("10.245.51.77" in flow or first in flow for flow in world.flows("node-1")), "a tunnel")
    world.kubectl("delete", "node", "far")
    wait_until(lambda: not world.call_api(subnet), "no subnet")
    wait_until(lambda: not any(first in flow for flow in world.flows("node-1")), "no tunnel")


def test_duplicate_vnid_connects_no_projects_and_is_repaired(world: StockCluster) -> None:
    """The nodes close the younger one until the controllers are back and give it a number of its own."""
    before = world.vnids()
    world.kill(NETWORK)
    world.kubectl("patch", "netnamespace", "blue", "--type=merge", "-p", json.dumps({"netid": before["red"]}))
    for node in world.nodes:
        wait_until(lambda node=node: "its VNID is that of" in world.log(node), f"{node} sees it")  # type: ignore[misc]
    closed = "red" if ignores(world, "node-1", "NetNamespace red") else "blue"
    mine, others = (RED, BLUE) if closed == "red" else (BLUE, RED)
    for node in world.nodes:
        flows = wait_until(partial(without, world, node, closed), f"{node} closes {closed}")
        here = [str(world.pods[name].address) for name in others if world.pods[name].node == node]
        assert all(any(address in flow for flow in flows) for address in here)
    assert not any(arrives(world, source, other) for source in mine for other in others)
    assert reaches(world, *others)
    world.start(NETWORK, world.controllers())
    wait_until(lambda: len({world.vnids()[name] for name in ("red", "blue")}) == 2, "two VNIDs again")
    settle(world, together=False)


def without(world: StockCluster, node: str, project: str) -> list[str]:
    """Return the flows of a node if none of them has an address of a project's pod; empty otherwise."""
    flows = world.flows(node)
    addresses = [str(pod.address) for pod in world.pods.values() if pod.project == project]
    return [] if any(address in flow for address in addresses for flow in flows) else flows


def test_duplicate_subnet_belongs_to_the_older_node(world: StockCluster) -> None:
    """A HostSubnet that a user creates with the subnet of another node receives none of its packets."""
    taken = world.call_api(lambda client: client.get(HostSubnet, "node-2")).subnet
    thief = HostSubnet(metadata=ObjectMeta(name="thief"), host="thief", host_ip="10.245.51.99", subnet=taken)
    world.call_api(lambda client: client.create(thief))
    for node in world.nodes:
        wait_until(partial(ignores, world, node, "HostSubnet thief"), f"{node} sees it")
        assert not any("10.245.51.99" in flow for flow in world.flows(node))
    assert reaches(world, *RED)
    world.kubectl("delete", "hostsubnet", "thief")


def test_invalid_network_objects_are_ignored(world: StockCluster) -> None:
    """The API server lets some of it through; neither the nodes nor the controllers fall over it."""
    bad = HostSubnet(metadata=ObjectMeta(name="odd"), host="other", host_ip="10.245.51.98", subnet="10.131.0.7/23")
    world.call_api(lambda client: client.create(bad))
    with pytest.raises(ApiError, match="netid"):
        world.call_api(lambda client: client.create(_lane("wide", 1 << 24)))
    world.call_api(lambda client: client.create(_lane("nobody", 77, netname="red")))
    wait_until(lambda: "HostSubnet odd" in world.log("node-1"), "node-1 sees it")
    wait_until(lambda: "NetNamespace nobody" in world.log("node-1"), "node-1 sees it")
    assert reaches(world, *RED)
    world.kubectl("delete", "hostsubnet/odd", "netnamespace/nobody")
    world.add_project("after")
    assert assigned_vnid(world, "after")


def _lane(name: str, netid: int, netname: str = "") -> NetNamespace:
    return NetNamespace(metadata=ObjectMeta(name=name), netname=netname or name, netid=netid)


def test_two_network_controllers_allocate_every_number_once(world: StockCluster) -> None:
    """The standby continues where the leader was killed, and finishes each unfinished write once."""
    world.start("second", world.controllers("second", "--health-address=127.0.0.1:10246"))
    wait_until(lambda: "is the leader" in world.ready(10246), "the second one waits")
    names = [f"crowd-{number}" for number in range(60)]

    async def crowd(client: Client, some: list[str]) -> None:
        await asyncio.gather(*(client.create(Namespace(metadata=ObjectMeta(name=name))) for name in some))

    world.call_api(partial(crowd, some=names[:30]))
    world.kill(NETWORK)
    world.call_api(partial(crowd, some=names[30:]))
    wait_until(lambda: set(names) <= world.vnids().keys(), "all have a VNID")
    given = [vnid for vnid in world.vnids().values() if vnid]
    assert len(given) == len(set(given))
    assert world.ready(10246) == "ok"
    world.start(NETWORK, world.controllers())
    wait_until(lambda: "is the leader" in world.ready(10247), "the first one waits now")
    world.stop("second")
    wait_until(lambda: world.ready(10247) == "ok", "it is let at once")
    world.kubectl("delete", "namespace", *names, "--wait=false")
    wait_until(lambda: not world.vnids().keys() & set(names), "no VNID is left")


def test_controller_that_lost_leadership_while_suspended_exits_without_writing(world: StockCluster) -> None:
    world.start("second", world.controllers("second", "--health-address=127.0.0.1:10246"))
    wait_until(lambda: "is the leader" in world.ready(10246), "the second one waits")
    world.signal(NETWORK, signal.SIGSTOP)
    wait_until(lambda: world.ready(10246) == "ok", "the second one is the leader")
    output = len(world.process_log(NETWORK))
    world.kubectl("create", "namespace", "meanwhile")
    assert assigned_vnid(world, "meanwhile")
    world.signal(NETWORK, signal.SIGCONT)
    wait_until(lambda: not world.is_alive(NETWORK), "it ends")
    assert "objects written" not in world.process_log(NETWORK)[output:]
    assert "somebody else may be in charge" in world.process_log(NETWORK)[output:]
    world.start(NETWORK, world.controllers())
    world.stop("second")
    wait_until(lambda: world.ready(10247) == "ok", "it is the leader again")
    world.kubectl("delete", "namespace", "meanwhile", "--wait=false")


def test_network_keeps_working_without_controllers_and_api_server(world: StockCluster) -> None:
    world.kill(NETWORK)
    world.kill("kube-apiserver")
    assert reaches(world, *RED)
    assert not arrives(world, "red-a", "blue-b")
    world.kill("node-1 sdn")
    assert reaches(world, *RED)
    world.start_again("kube-apiserver")
    wait_until(world.master_answers, "kube-apiserver")
    world.start(NETWORK, world.controllers())
    world.start("node-1 sdn")
    wait_until(lambda: world.network_ready("node-1"), "the daemon")
    world.add(PlannedPod("red-d", "red", "node-1"))
    assert reaches(world, "red-d", "red-c")
    world.remove("red-d")


def test_node_may_read_network_objects_and_change_none(world: StockCluster) -> None:
    async def as_node() -> None:
        async with Client(Kubeconfig.load(world.nodes["node-1"].kubeconfig)) as client:
            net_namespace = await client.get(NetNamespace, "red")
            with pytest.raises(Forbidden):
                await client.update(net_namespace)
            with pytest.raises(Forbidden):
                await client.delete(HostSubnet, "node-2")
            with pytest.raises(Forbidden):
                await client.list(Lease, NAMESPACE)

    asyncio.run(as_node())


def test_network_controllers_have_only_the_rights_they_need(world: StockCluster) -> None:
    async def as_network() -> None:
        async with Client(Kubeconfig.load(world.home / "network")) as client:
            with pytest.raises(Forbidden):
                await client.list(Pod)
            with pytest.raises(Forbidden):
                await client.delete(Namespace, "red")

    asyncio.run(as_network())


def test_kubernetes_services_are_proxied_and_isolated_by_project(world: StockCluster) -> None:
    """Addresses of pods, which our master shows by themselves, are read from the pods there."""
    register(world, "red-a", "red-c", "blue-a")
    with answering(world, "red-a", "red-c", "blue-a"):
        service = create_service(world, "web", "red", {"app": "red-c"})
        caller = world.pods["red-a"]
        answer = wait_for_answer(world.pod_namespace("red-a"), service.spec.cluster_ip, 80)
        assert tuple(answer) == ("red-c", str(caller.address))
        with pytest.raises(TimeoutError):
            call(world.pod_namespace("blue-a"), service.spec.cluster_ip, 80, seconds=0.3)
        assert wait_for_answer(world.nodes["node-1"].namespace, service.spec.cluster_ip, 80)[0] == "red-c"


def test_node_queries_are_disabled_by_default(world: StockCluster) -> None:
    with pytest.raises(NotFound):
        world.call_api(lambda client: client.list(NodeQuery))
    assert "red" in podlane_network(world.lab.kubeconfig, "status")
    world.kubectl("apply", "-f", str(MANIFESTS / "node-queries.yaml"))
    world.kubectl("wait", "--for=condition=Established", "crd/nodequeries.podlane.io")
    for node in world.nodes:
        world.kill(f"{node} sdn")
        world.start(f"{node} sdn")
        wait_until(partial(world.network_ready, node), "the daemon")
    shown = podlane_network(world.lab.kubeconfig, "status")
    assert shown.count("ready") == 2
    world.kubectl("delete", "-f", str(MANIFESTS / "node-queries.yaml"))


def test_allocation_cursors_are_stored_on_the_cluster_network(world: StockCluster) -> None:
    noted = json.loads(world.kubectl("get", "clusternetwork", "default", "-o", "json"))["metadata"]["annotations"]
    assert set(json.loads(noted[CURSORS_ANNOTATION])) == {"subnets", "vnids"}


def refused(world: StockCluster, *flags: str) -> str:
    """Return the log of controllers that exit by themselves."""
    world.start("third", world.controllers("third", "--health-address=127.0.0.1:10245", *flags))
    wait_until(lambda: not world.is_alive("third"), "it ends")
    return world.process_log("third")


def test_wrong_service_network_is_detected_before_anything_is_written(world: StockCluster) -> None:
    before = world.kubectl("get", "clusternetwork", "default", "-o", "yaml")
    output = refused(world, "--service-network=10.96.0.0/12")
    assert (
        "serviceNetwork is 10.96.0.0/12, but the service kubernetes of this cluster has the address 172.30.0.1"
        in output
    )
    assert world.kubectl("get", "clusternetwork", "default", "-o", "yaml") == before


def test_missing_custom_resources_are_reported_with_the_remedy(world: StockCluster) -> None:
    """The last one: it takes the network away."""
    world.kill(NETWORK)
    world.kubectl("delete", "-f", str(MANIFESTS / "network.yaml"))
    assert "kubectl apply -f" in refused(world)
