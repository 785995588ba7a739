"""Services for the adversary to call: their endpoints are written by hand, and every switch is asked what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from msgspec.structs import replace as changed

from api.core.endpoints import SERVICE_LABEL, Endpoint, EndpointSlice, SlicePort
from api.core.services import Service, ServicePort
from api.meta.types import ObjectMeta
from bench.bare import wait_until
from lab.topology import EXTERNAL_IP_NETWORK
from sdn.pipeline.tables import Table
from sdn.topology import GLOBAL_VNID
from tests.calls import BACKEND_PORT, Offer
from tests.net.cluster import NetCluster
from tests.net.serving import expose, register

PORT = 80
_ROW = re.compile(rf"table={int(Table.SERVICE)},.*?(?:reg0=(\w+),)?nw_dst=([0-9.]+),.*actions=(.*)")
_BACKEND = re.compile(r"dst=([0-9.]+):")


class Offers:
    """Each has a backend of its own project, of another one, or outside of the cluster; `all` are as they are now."""

    def __init__(self, cluster: NetCluster) -> None:
        self._cluster = cluster
        self._slices: dict[str, EndpointSlice] = {}
        self._offers: dict[str, Offer] = {}
        register(cluster, *cluster.pods)
        for project, backend in (
            ("amber", "amber-pod"),
            ("violet", "violet-pod"),
            ("red", "cyan-pod"),
            ("blue", ""),
            ("default", "admin-a"),
        ):
            self._make(project, backend)

    @property
    def all(self) -> tuple[Offer, ...]:
        """As the API has them."""
        return tuple(self._offers.values())

    def move(self, project: str, pod: str) -> None:
        """From now on this pod is the backend of a project's service."""
        backend = self._cluster.pods[pod]
        wish = changed(self._slices[project], endpoints=(Endpoint(addresses=(str(backend.address),)),))
        self._slices[project] = self._cluster.ask(lambda client: client.update(wish))
        self._offers[project] = replace(self._offers[project], backend=backend)

    def in_force(self, node: str, lanes: Mapping[str, int]) -> bool:
        """Whether a switch lets exactly those call each service whom these lanes let, and leads them to its backend."""
        found: dict[str, set[tuple[int | None, str]]] = {}
        for row in filter(None, map(_ROW.search, self._cluster.flows(node))):
            led = _BACKEND.search(row[3])
            found.setdefault(row[2], set()).add((int(row[1], 0) if row[1] else None, led[1] if led else ""))
        return all(found.get(str(offer.fronts["cluster IP"][0])) == self._wanted(offer, lanes) for offer in self.all)

    def _wanted(self, offer: Offer, lanes: Mapping[str, int]) -> set[tuple[int | None, str]]:
        outside = self._cluster.lab.site.outside
        backend = str(outside if offer.is_elsewhere else offer.backend.address) if offer.is_kept(lanes) else ""
        lane = lanes[offer.project]
        return {(who, backend) for who in ((None,) if lane == GLOBAL_VNID else (GLOBAL_VNID, lane))}

    def _make(self, project: str, backend: str) -> None:
        cluster = self._cluster
        external = IPv4Network(EXTERNAL_IP_NETWORK).network_address + 20 + len(self._offers)
        ports = (ServicePort(port=PORT, name="udp", protocol="UDP"),)
        more = {"ports": ports, "type": "LoadBalancer", "external_ips": (str(external),)}
        expose(cluster, "offer", project, {}, **more)
        address = cluster.pods[backend].address if backend else cluster.lab.site.outside
        wish = EndpointSlice(
            metadata=ObjectMeta(name="offer", namespace=project, labels={SERVICE_LABEL: "offer"}),
            address_type="IPv4",
            endpoints=(Endpoint(addresses=(str(address),)),),
            ports=(SlicePort(port=BACKEND_PORT, name="udp", protocol="UDP"),),
        )
        self._slices[project] = cluster.ask(lambda client: client.create(wish))
        made = wait_until(lambda: self._with_ingress(project), "an ingress address")
        assert made is not None
        [port] = made.spec.ports
        given = {"cluster IP": made.spec.cluster_ip, "external IP": str(external)}
        given["ingress IP"] = made.status.load_balancer.ingress[0].ip
        fronts = {name: (IPv4Address(text), PORT) for name, text in given.items()}
        for node in cluster.nodes:
            fronts[f"node port of {node}"] = (cluster.node_address(node), port.node_port)
        pod = cluster.pods[backend or "blue-pod"]
        self._offers[project] = Offer(f"{project}'s", project, fronts, port.node_port, pod, not backend)

    def _with_ingress(self, project: str) -> Service | None:
        service = self._cluster.ask(lambda client: client.get(Service, "offer", project))
        return service if service.status.load_balancer.ingress else None
