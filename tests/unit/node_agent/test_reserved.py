from __future__ import annotations

import pytest

from node_agent.cgroups.hierarchy import PodsCapacity, pod_limits
from node_agent.node.node_status import BadReservation, ReservedResources, parse_reserved
from tests.unit.node_agent.make import pod


def test_both_lists_count() -> None:
    found = parse_reserved("cpu=100m,memory=200Mi", " memory=56Mi, ephemeral-storage=1Gi,")
    assert found == ReservedResources(cpu=100, memory=256 << 20, disk=1 << 30)
    assert parse_reserved("", "") == ReservedResources()


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cores=1", "memory=much"])
def test_what_is_none_says_so(text: str) -> None:
    with pytest.raises(BadReservation, match=r"accepted|quantity"):
        parse_reserved(text)


def test_quotas_can_be_switched_off() -> None:
    wish = pod("[{name: main, image: a, resources: {limits: {cpu: 500m, memory: 64Mi}}}]")
    assert pod_limits(wish, PodsCapacity(4, 8 << 30)).quota == 50000
    assert pod_limits(wish, PodsCapacity(4, 8 << 30, quotas=False)).quota == 0
