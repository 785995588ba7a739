"""The master's DNS server for clients outside the cluster, over a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import dns.rcode

from api.meta.types import Object, ObjectMeta
from api.network.types import HostSubnet, NetNamespace
from master.config import MasterConfig
from master.dns import DNSServer
from master.resources.scheme import STORED_TYPES
from master.storage.sqlite import SQLiteStorage
from tests.testbed.apiserver.changes import delete, put
from tests.testbed.ports import free_port
from tests.unit.nameserver.examples import endpoint, service, slice_of

HERE, NODE, OUTSIDE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
WEB = "web.red.svc.cluster.local"


class Running:
    """A store, and the DNS server for it at a port."""

    def __init__(self, store: SQLiteStorage, port: int) -> None:
        self.store = store
        self._port = port

    async def put(self, *items: Object) -> None:
        await self.store.write(*(put(obj) for obj in items))

    async def resolve(self, name: str, source: str = OUTSIDE, kind: str = "A") -> list[str]:
        """Return the records of a name, or the code. An acknowledged write is visible at once."""
        query = dns.message.make_query(name, kind)
        answer = await dns.asyncquery.udp(query, HERE, 5, self._port, source=source)
        rows = [str(rdata) for rrset in answer.answer for rdata in rrset]
        return sorted(rows) or [dns.rcode.to_text(answer.rcode())]


async def listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection(HERE, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.001)
            else:
                return writer.close()


@asynccontextmanager
async def running(root: Path, *items: Object, **settings: Any) -> AsyncIterator[Running]:
    store = await SQLiteStorage.open(root / "store.db", STORED_TYPES)
    tasks = [asyncio.create_task(store.run())]
    try:
        port = free_port()
        here = Running(store, port)
        await here.put(*items)
        naming = DNSServer(store, MasterConfig(advertise_address=HERE, dns_port=port, **settings))
        tasks.append(asyncio.create_task(naming.run()))
        await listening(port)
        yield here
    finally:
        await store.close()
        tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cluster() -> tuple[Object, ...]:
    return (
        NetNamespace(metadata=ObjectMeta(name="red"), netname="red", netid=10),
        NetNamespace(metadata=ObjectMeta(name="default"), netname="default", netid=0),
        HostSubnet(metadata=ObjectMeta(name="node-1"), host="node-1", host_ip=NODE, subnet="10.128.0.0/23"),
        service("red", "web", '{"clusterIP": "172.30.0.5", "ports": [{"port": 80}]}'),
        service("default", "web", '{"clusterIP": "172.30.0.6", "ports": [{"port": 80}]}'),
    )


async def test_dns_answers_external_clients_for_all_services_and_pods_for_global_ones(tmp_path: Path) -> None:
    async with running(tmp_path, *cluster()) as here:
        assert await here.resolve(WEB) == ["172.30.0.5"]
        assert await here.resolve(WEB, NODE) == ["NXDOMAIN"]
        assert await here.resolve("web.default.svc.cluster.local", NODE) == ["172.30.0.6"]
        assert await here.resolve("www.example.com") == ["REFUSED"]


async def test_dns_answers_nodes_for_all_services_in_the_flat_network(tmp_path: Path) -> None:
    async with running(tmp_path, *cluster(), plugin="ovs-subnet") as here:
        assert await here.resolve(WEB, NODE) == ["172.30.0.5"]


async def test_dns_answers_follow_written_objects(tmp_path: Path) -> None:
    async with running(tmp_path, *cluster()) as here:
        headless = service("red", "db", '{"clusterIP": "None"}')
        await here.put(headless, slice_of("db", "red", endpoint("10.128.0.2"), endpoint("10.128.0.3")))
        assert await here.resolve("db.red.svc.cluster.local") == ["10.128.0.2", "10.128.0.3"]
        await here.put(slice_of("db", "red", endpoint("10.128.0.3")))
        assert await here.resolve("db.red.svc.cluster.local") == ["10.128.0.3"]
        await here.put(NetNamespace(metadata=ObjectMeta(name="red"), netname="red", netid=0))
        assert await here.resolve(WEB, NODE) == ["172.30.0.5"]
        await here.store.write(delete(headless))
        assert await here.resolve("db.red.svc.cluster.local") == ["NXDOMAIN"]


async def test_dns_serves_the_configured_domain(tmp_path: Path) -> None:
    async with running(tmp_path, *cluster(), cluster_domain="lab.example") as here:
        assert await here.resolve("web.red.svc.lab.example") == ["172.30.0.5"]
        assert await here.resolve(WEB) == ["REFUSED"]
