"""The actions of controllers, as one line each."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

from api.meta.types import ObjectMeta
from api.network.types import PLUGIN_MULTITENANT, PLUGIN_SUBNET
from master.allocators import AllocatorCursor, SubnetPool, SubnetPools
from master.config import NetworkConfig
from master.controllers.actions import Create, Delete, ForceDelete, Update, Warn

SERVICES = IPv4Network("172.30.0.0/16")


def pools(*entries: tuple[str, int]) -> SubnetPools:
    return SubnetPools(tuple(SubnetPool(IPv4Network(network), bits) for network, bits in entries))


CONFIG = NetworkConfig(pools(("10.128.0.0/14", 9)), SERVICES, PLUGIN_MULTITENANT, mtu=None)
FLAT = replace(CONFIG, plugin_name=PLUGIN_SUBNET)
TINY = replace(CONFIG, pools=pools(("10.1.0.0/24", 7)))
NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def cursor(number: int) -> AllocatorCursor:
    return AllocatorCursor(metadata=ObjectMeta(name="c", resource_version="3"), next=number)


def lines(outcomes: Iterable[object]) -> list[str]:
    """Return one line for each action."""
    return [_line(outcome) for outcome in outcomes]


def _line(outcome: Any) -> str:
    if isinstance(outcome, Warn):
        return f"! {outcome.about}: {outcome.text}"
    obj = outcome.object
    sign = {Create: "+", Update: "~", ForceDelete: "-", Delete: "end"}[type(outcome)]
    values = {"HostSubnet": ("subnet", "host_ip"), "NetNamespace": ("netid",), "Cursor": ("next",)}.get(obj.KIND, ())
    return " ".join([sign, obj.KIND, obj.metadata.name, *(str(getattr(obj, name)) for name in values)])
