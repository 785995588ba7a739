"""What controllers wish, in a line each."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any

from api.objects import ObjectMeta
from master.controllers import Change, Cursor, Drop, EndPod, Make, NetworkWish, Notice

WISH = NetworkWish(
    IPv4Network("10.128.0.0/14"), 9, IPv4Network("172.30.0.0/16"), "redhat/openshift-ovs-multitenant", mtu=None
)
FLAT = NetworkWish(IPv4Network("10.128.0.0/14"), 9, IPv4Network("172.30.0.0/16"), "redhat/openshift-ovs-subnet")
TINY = NetworkWish(IPv4Network("10.1.0.0/24"), 7, IPv4Network("172.30.0.0/16"), WISH.plugin_name)
WALL = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def cursor(number: int) -> Cursor:
    return Cursor(metadata=ObjectMeta(name="c", resource_version="3"), next=number)


def lines(outcomes: Iterable[object]) -> list[str]:
    """What is wished, in a line each."""
    return [_line(outcome) for outcome in outcomes]


def _line(outcome: Any) -> str:
    if isinstance(outcome, Notice):
        return f"! {outcome.about}: {outcome.text}"
    item = outcome.item
    sign = {Make: "+", Change: "~", Drop: "-", EndPod: "end"}[type(outcome)]
    values = {"HostSubnet": ("subnet", "host_ip"), "NetNamespace": ("netid",), "Cursor": ("next",)}.get(item.KIND, ())
    return " ".join([sign, item.KIND, item.metadata.name, *(str(getattr(item, name)) for name in values)])
