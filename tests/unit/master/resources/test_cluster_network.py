"""Warnings about fields of HostSubnets and NetNamespaces."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from api.meta.types import ObjectMeta
from api.network.types import HostSubnet, NetNamespace
from master.resources.scheme import BY_KIND

SUBNET = HostSubnet(metadata=ObjectMeta(name="n"), host="n", host_ip="10.0.0.1", subnet="10.128.0.0/23")
PROJECT = NetNamespace(metadata=ObjectMeta(name="red"), netname="red", netid=10)


@pytest.mark.parametrize(
    ("obj", "count"),
    [
        (SUBNET, 0),
        (PROJECT, 0),
        (replace(SUBNET, egress_cidrs=("10.0.0.0/24",)), 1),
        (replace(SUBNET, egress_ips=("10.0.0.7",)), 1),
        (replace(PROJECT, egress_ips=("10.0.0.7",)), 1),
    ],
)
def test_egress_addresses_have_no_effect(obj: HostSubnet | NetNamespace, count: int) -> None:
    assert len(list(BY_KIND[obj.KIND].rules.warnings(obj))) == count
