"""Services: clients, frontends and endpoints, and their behaviour while pods and daemons end."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.web_service import EXTERNAL_IP, PORT, REPLICAS, RIVAL, SHOP, CallCounts, Caller, WebService
from tests.testbed.wait import wait_until

AT_ONCE = 20
CALLS = 400
TOO_UNEVEN = 21.1
"""Chi-square with three degrees of freedom is larger once in ten thousand times."""
EACH_SECOND = 100


@pytest.fixture(scope="module")
def shop(cluster: Cluster) -> Iterator[WebService]:
    web_service = WebService(cluster)
    try:
        web_service.open()
        yield web_service
    finally:
        web_service.close()


def fronts(shop: WebService) -> dict[str, tuple[str, int]]:
    """Return every frontend of the service `web`."""
    nodes = {f"the node port of {node}": (str(shop.node_address(node)), shop.node_port) for node in shop.nodes}
    addresses = {"its cluster IP": shop.cluster_ip(), "its ingress IP": shop.ingress_ip, "an external IP": EXTERNAL_IP}
    return {**{name: (str(address), PORT) for name, address in addresses.items()}, **nodes}


def unanswered(callers: list[Caller], fronts: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Return the clients that get no answer, with the frontend and the error. All call at once."""
    pairs = [(caller, name) for caller in callers for name in fronts]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        came = threads.map(lambda pair: pair[0].calls(*fronts[pair[1]]), pairs)
        reported = {
            f"{caller.name} at {name}": called.failures for (caller, name), called in zip(pairs, came, strict=True)
        }
    return {caller: failures[0] for caller, failures in reported.items() if failures}


def insiders(shop: WebService) -> list[Caller]:
    """Return the clients with access: pods of the project and of VNID 0, and nodes."""
    pods = [shop.pod(SHOP, node) for node in shop.nodes]
    return [*pods, shop.pod("default", "global"), *map(shop.node, shop.nodes)]


def test_allowed_clients_reach_a_service_at_every_frontend(shop: WebService) -> None:
    assert unanswered(insiders(shop), fronts(shop)) == {}


def test_external_clients_reach_a_service_except_at_its_cluster_ip(shop: WebService) -> None:
    everywhere = fronts(shop)
    del everywhere["its cluster IP"]
    assert unanswered([shop.outside], everywhere) == {}


def test_other_projects_reach_a_service_at_no_frontend(shop: WebService) -> None:
    """At the same time, a pod of the project calls each frontend and gets answers."""
    everywhere = fronts(shop)
    own, rivals = ([shop.pod(project, node) for node in shop.nodes] for project in (SHOP, RIVAL))
    assert unanswered(rivals, everywhere).keys() == {
        f"{caller.name} at {name}" for caller in rivals for name in everywhere
    }
    assert unanswered(own, everywhere) == {}


def uneven(counts: Counter[str], shop: WebService) -> float:
    """Return the chi-square statistic of the answers against an even distribution over the endpoints."""
    assert set(counts) <= set(shop.endpoints("web"))
    each = counts.total() / REPLICAS
    return sum((counts[name] - each) ** 2 / each for name in shop.endpoints("web"))


def test_service_connections_are_spread_evenly_over_endpoints(shop: WebService) -> None:
    """For pods, the switch distributes connections. For nodes and external clients, the firewall of the called node
    does.
    """
    cluster_ip, node_port = (shop.cluster_ip(), PORT), (str(shop.node_address("node-2")), shop.node_port)
    for caller, where in ((shop.pod(SHOP, "node-1"), cluster_ip), (shop.node("node-1"), cluster_ip)):
        evenly(caller.calls(*where, times=CALLS), shop)
    evenly(shop.outside.calls(*node_port, times=CALLS), shop)


def evenly(called: CallCounts, shop: WebService) -> None:
    assert not called.failures, called.failures[:3]
    assert uneven(called.answers, shop) < TOO_UNEVEN, called.answers


def test_pods_get_endpoints_of_the_called_node_only_with_external_traffic_policy_local(shop: WebService) -> None:
    """The only endpoint is one pod of the web server. Its health checks are open to pods at every node."""
    endpoint = min(shop.pods())
    home = shop.cluster.kubectl("-n", SHOP, "get", "pod", endpoint, "-o", "jsonpath={.spec.nodeName}").stdout
    shop.cluster.kubectl("-n", SHOP, "label", "pod", endpoint, "only=yes")
    wait_until(lambda: endpoint in shop.endpoints("local"), "the endpoint")
    spec = shop.service("local")["spec"]
    port, health_port = spec["ports"][0]["nodePort"], spec["healthCheckNodePort"]
    places = {node: str(shop.node_address(node)) for node in shop.nodes}
    for node in shop.nodes:
        caller = shop.pod(SHOP, node)
        wait_until(lambda: caller.is_answered(places[node], port), "the own node")  # noqa: B023
        healthy = {place for place, address in places.items() if is_healthy(shop, node, address, health_port)}
        assert healthy == {home}
    callers = {(project, node): shop.pod(project, node) for project in (SHOP, RIVAL) for node in shop.nodes}
    callers["", "outside"] = shop.outside

    def is_answered(call: tuple[tuple[str, str], str]) -> bool:
        return callers[call[0]].is_answered(places[call[1]], port)

    calls = [(caller, place) for caller in callers for place in places]
    with ThreadPoolExecutor(max_workers=len(calls)) as threads:  # Most calls have no answer, and wait for it.
        answered = {call for call, answer in zip(calls, threads.map(is_answered, calls), strict=True) if answer}
    assert answered == {
        *(((SHOP, node), place) for node in shop.nodes for place in {home, node}),
        (("", "outside"), home),
    }


def is_healthy(shop: WebService, caller: str, address: str, port: int) -> bool:
    """Return whether a health check succeeds that a pod of the project makes. Every node answers it."""
    words = ("curl", "-sS", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", f"http://{address}:{port}/healthz")
    status = shop.cluster.execute(SHOP, caller, *words).stdout
    assert status in {"200", "503"}
    return status == "200"


def test_session_affinity_keeps_a_client_at_its_endpoint(shop: WebService) -> None:
    """Several clients have more than one endpoint together."""
    callers = insiders(shop)
    address = shop.cluster_ip("sticky")
    answers = [caller.calls(address, times=20) for caller in callers]
    assert [called.failures for called in answers] == [()] * len(callers)
    assert [len(called.answers) for called in answers] == [1] * len(callers)


def test_service_without_endpoints_rejects_connections(shop: WebService) -> None:
    address = shop.cluster_ip("nobody")
    for caller in (shop.pod(SHOP, "node-1"), shop.node("node-1")):
        [failure] = caller.calls(address).failures
        assert "Errno 111" in failure, failure


def test_service_names_resolve_to_reachable_services(shop: WebService) -> None:
    for name in ("web", f"web.{SHOP}", f"web.{SHOP}.svc", f"web.{SHOP}.svc.cluster.local"):
        page = shop.cluster.execute(SHOP, "node-1", "curl", "-sS", "-m", "5", f"http://{name}")
        assert page.stdout.strip() in shop.endpoints("web"), f"{name}: {page.stderr}"
    actual = shop.cluster.execute("default", "global", "nslookup", f"web.{SHOP}.svc.cluster.local")
    assert shop.cluster_ip() in actual.stdout
    hidden = shop.cluster.execute(RIVAL, "node-1", "nslookup", f"web.{SHOP}.svc.cluster.local")
    assert shop.cluster_ip() not in hidden.stdout
    assert hidden.returncode != 0


def callers_all_the_while(shop: WebService) -> list[tuple[Caller, str, int]]:
    """Return the clients that call throughout a test: a pod at the cluster IP, and an external client at a node
    port.
    """
    return [
        (shop.pod(SHOP, "node-1"), shop.cluster_ip(), PORT),
        (shop.outside, str(shop.node_address("node-3")), shop.node_port),
    ]


@pytest.mark.parametrize("number", [0, 1], ids=["a pod", "the outside"])
def test_no_request_is_lost_while_a_replication_controller_rolls(shop: WebService, number: int) -> None:
    caller, address, port = callers_all_the_while(shop)[number]
    before = shop.endpoints("web")
    with caller.calling(address, EACH_SECOND, port) as came:
        for name in before:
            shop.cluster.kubectl("-n", SHOP, "delete", "pod", name, "--wait=false")
            wait_until(lambda name=name: is_replaced(shop, name), f"{name} has a successor")  # type: ignore[misc]
        wait_until(lambda: not shop.pods() & before.keys(), "those before are gone")
    [called] = came
    assert called.failures == ()
    assert called.answers.total() > EACH_SECOND
    assert called.answers.keys() & before.keys()
    assert called.answers.keys() - before.keys()


def is_replaced(shop: WebService, name: str) -> bool:
    endpoints = shop.endpoints("web")
    return name not in endpoints and len(endpoints) == REPLICAS


def test_no_request_is_lost_when_the_sdn_daemons_are_killed(shop: WebService) -> None:
    (pod, address, port), (outside, node, node_port) = callers_all_the_while(shop)
    with pod.calling(address, EACH_SECOND, port) as of_pod, outside.calling(node, EACH_SECOND, node_port) as of_outside:
        for name in shop.nodes:
            shop.cluster.kill(shop.cluster.nodes[name].root / "sdn.pid")
        shop.cluster.kubectl("-n", SHOP, "annotate", "service", "web", "touched=yes", "--overwrite")
    outcomes = {pod.name: of_pod[0], outside.name: of_outside[0]}
    assert {name: called.failures for name, called in outcomes.items()} == {pod.name: (), outside.name: ()}
    assert all(called.answers.total() > EACH_SECOND for called in outcomes.values())


def test_killed_endpoint_gets_no_connection_after_its_probe_failed(shop: WebService) -> None:
    name = min(shop.endpoints("web"))
    shop.cluster.execute(SHOP, name, "rm", "/tmp/www/index.html")
    wait_until(lambda: name not in shop.endpoints("web"), "the probe has told")
    caller, address = shop.pod(SHOP, "node-1"), shop.cluster_ip()
    wait_until(lambda: not caller.calls(address, times=40).failures, "nobody is sent there any more")
    assert not caller.calls(address, times=CALLS).failures
    restart(shop, name)
    wait_until(lambda: name in shop.endpoints("web"), "it is back")
    wait_until(lambda: name in caller.calls(address, times=40).answers, "it is called again")


def restart(shop: WebService, name: str) -> None:
    """Restart the container of a pod, which writes its page again."""
    os.kill(shop.cluster.pid(SHOP, name), signal.SIGKILL)
