"""The userspace proxy in a process of its own.

`python -m bench.userspace_proxy_process BACKEND_ADDRESS BACKEND_PORT FRONT COUNT`

It serves COUNT services, of which FRONT is the first cluster IP, on port 80, all by one backend; it prints its port and
how many milliseconds it took to take them in, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from ipaddress import IPv4Address, IPv4Network

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName
from sdn.proxy.service_ports import ProxyConfig
from sdn.proxy.userspace.proxier import UserspaceProxier
from sdn.topology import VXLAN_PORT, Node

CONFIG = ProxyConfig(
    node=Node("bench", IPv4Address("127.0.0.1"), IPv4Network("10.128.0.0/23")),
    cluster_networks=(IPv4Network("0.0.0.0/0"),),
    service_network=IPv4Network("172.30.0.0/16"),
    node_port_range=(30000, 32767),
    vnids=None,
    node_ips=frozenset(),
    vxlan_port=VXLAN_PORT,
)


async def main(backend: EndpointInfo, front: IPv4Address, count: int) -> None:
    """Run the proxy until killed."""
    proxy = UserspaceProxier()
    await proxy.open()
    ports = [
        ServicePortInfo(
            key=ServicePortName("bench", f"web-{number}", "", Protocol.TCP),
            vnid=0,
            cluster_ip=front + number,
            port=80,
            internal_endpoints=(backend,),
        )
        for number in range(count)
    ]
    begin = time.perf_counter()
    await proxy.sync(CONFIG, ports)
    print(proxy.port, (time.perf_counter() - begin) * 1000, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(
        main(EndpointInfo(IPv4Address(sys.argv[1]), int(sys.argv[2])), IPv4Address(sys.argv[3]), int(sys.argv[4]))
    )
