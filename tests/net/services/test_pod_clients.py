"""Services for pods: the switch with real packets between two nodes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.core.services import ClientIPConfig, Service, ServicePort, SessionAffinityConfig
from lab.process import run
from tests.testbed.namespaces import inside
from tests.testbed.netns.packet_world import PacketWorld
from tests.testbed.netns.services import TARGET_PORT, call, create_service, wait_for_answer
from tests.testbed.wait import wait_until

SILENCE_SECONDS = 0.5
SOON_SECONDS = 20.0
ITSELF = "169.254.0.252"
OWN_PORT = 20001
NODES = ("node-1", "node-2")
UDP_PORTS = (ServicePort(port=80, target_port=TARGET_PORT, protocol="UDP"),)


@pytest.fixture(scope="module")
def web(serving: PacketWorld) -> Service:
    """Create a service of the project red with a pod on each node and with a node port."""
    service = create_service(serving, "web", "red", {"all": "yes"}, type="NodePort")
    for name in ("red-b", "red-c"):
        wait_for_answer(serving.pod_namespace(name), service.spec.cluster_ip, 80)
    return service


def fronts(cluster: PacketWorld, service: Service) -> list[tuple[str, int]]:
    """Return the cluster IP, and the node port at every node."""
    at_nodes = [(str(cluster.node_address(node)), service.spec.ports[0].node_port) for node in cluster.nodes]
    return [(service.spec.cluster_ip, service.spec.ports[0].port), *at_nodes]


@pytest.mark.parametrize("caller", ["red-b", "red-c", "admin-a", "admin-b"])
def test_project_and_global_pods_reach_a_service_with_their_own_address(
    serving: PacketWorld, web: Service, caller: str
) -> None:
    for address, port in fronts(serving, web):
        seen = {call(serving.pod_namespace(caller), address, port) for _ in range(8)}
        assert {pod_name for pod_name, _ in seen} <= {"red-a", "red-b", "red-c"}
        assert {as_whom for pod_name, as_whom in seen if pod_name != caller} == {str(serving.pods[caller].address)}


@pytest.mark.parametrize("caller", ["blue-a", "blue-b"])
def test_other_project_reaches_a_service_at_no_frontend(serving: PacketWorld, web: Service, caller: str) -> None:
    namespace = serving.pod_namespace(caller)
    own = create_service(serving, f"own-{caller}", "blue", {"app": caller}, type="NodePort")
    for address, port in fronts(serving, own):
        assert wait_for_answer(namespace, address, port)[0] == caller
    for address, port in fronts(serving, web):
        with pytest.raises(TimeoutError):
            call(namespace, address, port, seconds=SILENCE_SECONDS)


@contextlib.contextmanager
def daemons_killed(cluster: PacketWorld) -> Iterator[None]:
    """Kill the sdn daemon of every node, and start them again after the block."""
    for node in cluster.nodes:
        cluster.kill(f"{node} sdn")
    try:
        yield
    finally:
        for node in cluster.nodes:
            cluster.start(f"{node} sdn")
        for node in cluster.nodes:
            wait_until(lambda: cluster.network_ready(node), f"the network of {node}")  # noqa: B023


def answer(namespace: str, address: object, port: int, protocol: str) -> tuple[str, str] | None:
    """Return the pod that answers and the client's address that it sees, or None if nothing comes back.

    A change of the policy in the middle of a connection resets it.
    """
    try:
        return call(namespace, address, port, protocol, SILENCE_SECONDS)
    except TimeoutError:
        return None
    except ConnectionError as error:
        return "", str(error)


def answers(
    serving: PacketWorld, clients: Mapping[str, str], port: int, protocol: str
) -> dict[tuple[str, str], tuple[str, str] | None]:
    """Return what each client, by its namespace, gets from the port of each node. All call at the same time."""
    calls = [(client, node) for client in clients for node in serving.nodes]

    def reply(called: tuple[str, str]) -> tuple[str, str] | None:
        client, node = called
        return answer(clients[client], serving.node_address(node), port, protocol)

    with ThreadPoolExecutor(max_workers=len(calls)) as threads:
        return dict(zip(calls, threads.map(reply, calls), strict=True))


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize("endpoint", ["red-a", "red-c"])
def test_pod_gets_endpoints_of_the_called_node_only_with_external_traffic_policy_local(
    serving: PacketWorld, endpoint: str, protocol: str
) -> None:
    """The own node serves its pods and processes with any endpoint, as kube-proxy does."""
    name = f"local-{endpoint}-{protocol.lower()}"
    ports = (ServicePort(port=80, target_port=TARGET_PORT, protocol=protocol),)
    service = create_service(serving, name, "red", {"app": endpoint}, ports=ports, type="NodePort")
    port, home = service.spec.ports[0].node_port, serving.pods[endpoint].node
    for caller in ("red-b", "red-c"):
        for node in serving.nodes:
            wait_for_answer(serving.pod_namespace(caller), serving.node_address(node), port, protocol)

    def replies() -> dict[tuple[str, str], tuple[str, str] | None]:
        clients = {name: serving.pod_namespace(name) for name in ("red-b", "red-c", "admin-a", "admin-b", "blue-a")}
        clients |= {node: lab_node.namespace for node, lab_node in serving.nodes.items()}
        return answers(serving, clients, port, protocol)

    def expected(client: str, node: str, *, is_local: bool) -> tuple[str, str] | None:
        if client == "blue-a":
            return None
        is_pod = client in serving.pods
        own_node = serving.pods[client].node if is_pod else client
        own_address = str(serving.pods[client].address if is_pod else serving.gateway(own_node))
        if node == own_node or (is_pod and not is_local):
            return endpoint, ITSELF if client == endpoint else own_address
        if is_local:
            return (endpoint, str(serving.node_address(own_node))) if node == home else None
        return endpoint, str(serving.node_address(own_node) if node == home else serving.gateway(node))

    def all_expected(*, is_local: bool) -> dict[tuple[str, str], tuple[str, str] | None]:
        return {(client, node): expected(client, node, is_local=is_local) for client, node in replies()}

    cluster, local = all_expected(is_local=False), all_expected(is_local=True)
    assert None not in {cluster[client, node] for client, node in cluster if client != "blue-a"}
    assert None in {local[client, node] for client, node in local if client != "blue-a"}
    for policy, wanted in (("Local", local), ("Cluster", cluster), ("Local", local)):
        patch = {"spec": {"externalTrafficPolicy": policy}}
        serving.call_api(lambda client: client.patch(Service, name, "red", patch))  # noqa: B023
        wait_until(lambda: replies() == wanted, f"the replies with the policy {policy}")  # noqa: B023
        assert replies() == wanted
    with daemons_killed(serving):
        assert replies() == local
    assert replies() == local
    serving.call_api(lambda client: client.delete(Service, name, "red"))


def test_pods_reach_the_health_checks_of_their_services_at_every_node(serving: PacketWorld) -> None:
    more = {"type": "LoadBalancer", "external_traffic_policy": "Local"}
    service = create_service(serving, "checked", "red", {"app": "red-c"}, **more)
    port = service.spec.health_check_node_port

    def statuses(caller: str) -> list[int]:
        return [health_status(serving.pod_namespace(caller), serving.node_address(node), port) for node in NODES]

    for caller in ("red-a", "red-c", "admin-a", "admin-b"):
        wait_until(lambda: statuses(caller) == [503, 200], f"the health checks for {caller}")  # noqa: B023
    for caller in ("blue-a", "blue-b"):
        assert statuses(caller) == [0, 0]
    serving.call_api(lambda client: client.patch(Service, "checked", "red", {"spec": {"selector": {"app": "red-a"}}}))
    wait_until(lambda: statuses("red-c") == [200, 503], "the health checks after the move")
    serving.kill("node-1 sdn")
    try:
        # Nobody answers at node-1 now. The other node is reached by way of it.
        assert health_status(serving.pod_namespace("red-a"), serving.node_address("node-2"), port) == 503
        assert health_status(serving.pod_namespace("blue-a"), serving.node_address("node-2"), port) == 0
    finally:
        serving.start("node-1 sdn")
    wait_until(lambda: statuses("red-a") == [200, 503], "the health checks after the restart")
    serving.call_api(lambda client: client.delete(Service, "checked", "red"))
    wait_until(lambda: statuses("red-a") == [0, 0], "no health checks without the service")


def health_status(namespace: str, address: object, port: int) -> int:
    """Return the status of a health check; 0 if nothing comes back, -1 if the connection is refused."""
    with inside(namespace):
        caller = socket.socket()
    with caller:
        caller.settimeout(SILENCE_SECONDS)
        try:
            caller.connect((str(address), port))
            caller.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            return int(caller.recv(64).split()[1])
        except TimeoutError:
            return 0
        except ConnectionRefusedError:
            return -1


def test_pod_reaches_itself_through_its_service(serving: PacketWorld) -> None:
    service = create_service(serving, "mirror", "red", {"app": "red-a"}, type="NodePort")
    for address, port in fronts(serving, service):
        assert wait_for_answer(serving.pod_namespace("red-a"), address, port) == ("red-a", ITSELF)


def test_source_port_of_a_service_connection_can_soon_connect_to_the_endpoint(serving: PacketWorld) -> None:
    """Open vSwitch alone would track the ended connection for 45 s. Each try renews that time."""
    service = create_service(serving, "left", "red", {"app": "red-c"})
    caller, backend = serving.pod_namespace("red-a"), serving.pods["red-c"].address
    wait_for_answer(caller, service.spec.cluster_ip, 80)
    assert call(caller, service.spec.cluster_ip, 80, own_port=OWN_PORT)[0] == "red-c"

    def direct() -> tuple[str, str] | None:
        with contextlib.suppress(OSError):
            return call(caller, backend, TARGET_PORT, seconds=SILENCE_SECONDS, own_port=OWN_PORT)
        return None

    seen = wait_until(direct, f"an answer of {backend} itself", SOON_SECONDS, pause=2.0)
    assert seen == ("red-c", str(serving.pods["red-a"].address))


def test_session_affinity_keeps_the_endpoint(serving: PacketWorld) -> None:
    service = create_service(serving, "kept", "red", {"all": "yes"}, session_affinity="ClientIP")
    for caller in ("red-a", "red-b", "red-c", "admin-a"):
        namespace = serving.pod_namespace(caller)
        wait_for_answer(namespace, service.spec.cluster_ip, 80)
        assert len({call(namespace, service.spec.cluster_ip, 80)[0] for _ in range(12)}) == 1


def test_session_affinity_expires(serving: PacketWorld) -> None:
    brief = SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=1))
    affinity = {"session_affinity": "ClientIP", "session_affinity_config": brief}
    address = create_service(serving, "briefly", "red", {"all": "yes"}, **affinity).spec.cluster_ip
    pod = serving.pod_namespace("red-a")
    wait_for_answer(pod, address, 80)

    def replies_within_timeout() -> set[str]:
        """Return the endpoints of 12 calls. Return none if they took so long that affinity may have expired."""
        begin = time.monotonic()
        replies = {call(pod, address, 80)[0] for _ in range(12)}
        return replies if time.monotonic() - begin < 1 else set()

    replies = wait_until(replies_within_timeout, "12 calls within a second")
    [first] = replies
    wait_until(lambda: call(pod, address, 80)[0] != first, "another backend", pause=2.0)


def test_service_without_endpoints_rejects_at_once(serving: PacketWorld) -> None:
    service = create_service(serving, "empty", "red", {"app": "nobody"}, type="NodePort")

    def refused(address: str, port: int) -> bool:
        try:
            call(serving.pod_namespace("red-b"), address, port, seconds=SILENCE_SECONDS)
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
        raise AssertionError("somebody answers")

    for address, port in fronts(serving, service):
        assert wait_until(lambda: refused(address, port), f"a refusal from {address}:{port}")  # noqa: B023
    for address, port in fronts(serving, service):
        with pytest.raises(TimeoutError):
            call(serving.pod_namespace("blue-a"), address, port, seconds=SILENCE_SECONDS)


@pytest.mark.parametrize("endpoint", ["red-b", "red-c"])
def test_port_unreachable_of_an_endpoint_reaches_its_client(serving: PacketWorld, endpoint: str) -> None:
    """The ICMP error is translated as well: the client's socket would not know one about the endpoint's address."""
    closed = (ServicePort(port=80, target_port=TARGET_PORT + 1, protocol="UDP"),)
    service = create_service(serving, f"closed-on-{endpoint}", "red", {"app": endpoint}, ports=closed)
    with inside(serving.pod_namespace("red-a")):
        caller = socket.socket(type=socket.SOCK_DGRAM)

    def is_refused() -> bool:
        with contextlib.suppress(TimeoutError):
            caller.send(b"anybody?")
            try:
                caller.recv(10)
            except ConnectionRefusedError:
                return True
        return False

    with caller:
        caller.settimeout(SILENCE_SECONDS)
        caller.connect((service.spec.cluster_ip, 80))
        assert wait_until(is_refused, "the refusal")


def test_fragmented_datagrams_arrive_and_leave_a_removed_endpoint(serving: PacketWorld) -> None:
    service = create_service(serving, "datagrams", "red", {"all": "yes"}, ports=UDP_PORTS)
    namespace = serving.pod_namespace("admin-b")
    wait_for_answer(namespace, service.spec.cluster_ip, 80, "UDP")
    with inside(namespace):
        caller = socket.socket(type=socket.SOCK_DGRAM)

    def answering_pod(size: int = 4000) -> str:
        caller.send(bytes(size))
        return caller.recv(2048).decode().partition(" ")[0]

    with caller:
        caller.settimeout(SILENCE_SECONDS)
        caller.connect((service.spec.cluster_ip, 80))
        first = answering_pod(1)
        assert {answering_pod() for _ in range(5)} == {first}
        others = {"red-a", "red-b", "red-c"} - {first}
        left = min(others)
        serving.call_api(
            lambda client: client.patch(Service, "datagrams", "red", {"spec": {"selector": {"app": left}}})
        )

        def moved() -> bool:
            try:
                return answering_pod(1) == left
            except TimeoutError:
                return False

        assert wait_until(moved, f"datagrams to go to {left} and no longer to {first}")


def test_datagrams_leave_a_removed_endpoint_though_the_switch_still_caches_its_path(serving: PacketWorld) -> None:
    """The revalidators of the switch are held up, as on a busy machine, while the client goes on sending."""
    service = create_service(serving, "cached", "red", {"all": "yes"}, ports=UDP_PORTS)
    namespace, node = serving.pod_namespace("admin-b"), serving.nodes[serving.pods["admin-b"].node]
    wait_for_answer(namespace, service.spec.cluster_ip, 80, "UDP")
    with inside(namespace):
        caller = socket.socket(type=socket.SOCK_DGRAM)

    def answering_pod() -> str:
        caller.send(b"who?")
        try:
            return caller.recv(2048).decode().partition(" ")[0]
        except TimeoutError:
            return ""

    with caller:
        caller.settimeout(SILENCE_SECONDS)
        caller.connect((service.spec.cluster_ip, 80))
        first = answering_pod()
        left = min({"red-a", "red-b", "red-c"} - {first})
        appctl = ("ovs-appctl", "-t", f"{node.ovs}/ovs-vswitchd.ctl")
        run(*appctl, "revalidator/pause")
        try:
            log = serving.log(node.name)
            serving.call_api(
                lambda client: client.patch(Service, "cached", "red", {"spec": {"selector": {"app": left}}})
            )
            wait_until(lambda: "services changed" in serving.log(node.name)[len(log) :], "the change")
            answers = [answering_pod() for _ in range(10)]
        finally:
            run(*appctl, "revalidator/resume")
        assert set(answers) <= {first, left, ""}
        wait_until(lambda: answering_pod() == left, f"datagrams to go to {left} and no longer to {first}", pause=0.1)
