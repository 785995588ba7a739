"""A service with endpoints on two nodes, and its callers."""

from __future__ import annotations

from ipaddress import IPv4Address

from sdn.model.service_port import EndpointInfo, Protocol, ServicePortInfo, ServicePortName

CLUSTER_IP, OUTSIDE_IP = IPv4Address("172.30.0.9"), IPv4Address("192.0.2.9")


NODE, OTHER_NODE = IPv4Address("10.245.2.3"), IPv4Address("10.245.2.4")


POD, STRANGER = IPv4Address("10.128.0.7"), IPv4Address("203.0.113.5")


HERE, THERE = (
    EndpointInfo(IPv4Address("10.128.0.2"), 8080, is_local=True),
    EndpointInfo(IPv4Address("10.128.2.2"), 8080),
)


WEB = ServicePortInfo(
    key=ServicePortName("red", "web", "", Protocol.TCP),
    vnid=10,
    cluster_ip=CLUSTER_IP,
    port=80,
    node_port=30080,
    external_ips=(OUTSIDE_IP,),
    internal_endpoints=(HERE, THERE),
    cluster_endpoints=(THERE,),
    external_endpoints=(HERE,),
)
