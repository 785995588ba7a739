"""Admission of host subnets and cluster networks that overlap existing ones."""

from __future__ import annotations

import re

import pytest

from api.meta.types import ObjectMeta
from api.network.types import ClusterNetwork, HostSubnet
from master.admission import cluster_network
from master.errors import StatusError

CLUSTER = ClusterNetwork(
    metadata=ObjectMeta(name="default"), network="10.128.0.0/14", hostsubnetlength=9, service_network="172.30.0.0/16"
)
THERE = HostSubnet(metadata=ObjectMeta(name="a"), host="a", host_ip="10.245.2.3", subnet="10.128.0.0/23")


def by_hand(host_ip: str, subnet: str) -> HostSubnet:
    return HostSubnet(metadata=ObjectMeta(name="b"), host="b", host_ip=host_ip, subnet=subnet)


def test_manual_host_subnet_is_admitted() -> None:
    cluster_network.check_host_subnet(by_hand("10.245.2.4", "10.128.2.0/23"), [THERE], CLUSTER)
    cluster_network.check_host_subnet(by_hand("10.245.2.4", ""), [THERE], CLUSTER)
    cluster_network.check_host_subnet(THERE, [THERE], CLUSTER)


@pytest.mark.parametrize(
    ("host_ip", "subnet", "words"),
    [
        (
            "10.245.2.4",
            "10.245.2.0/24",
            "subnet: Invalid value: .*a part of the cluster network 10.128.0.0/14 is accepted",
        ),
        ("10.245.2.4", "172.30.4.0/24", "subnet: .*a part of the cluster network"),
        ("10.245.2.4", "10.128.0.0/24", "subnet: .*HostSubnet a has 10.128.0.0/23"),
        ("10.128.9.9", "10.128.2.0/23", "hostIP: .*an address outside of 10.128.0.0/14 is accepted"),
        ("172.30.0.9", "10.128.2.0/23", "hostIP: .*an address outside of 172.30.0.0/16 is accepted"),
        ("10.245.2.3", "10.128.2.0/23", "hostIP: .*HostSubnet a has this address"),
    ],
)
def test_overlapping_host_subnet_is_rejected(host_ip: str, subnet: str, words: str) -> None:
    with pytest.raises(StatusError) as refused:
        cluster_network.check_host_subnet(by_hand(host_ip, subnet), [THERE], CLUSTER)
    assert re.search(words, refused.value.status.message), refused.value.status.message
