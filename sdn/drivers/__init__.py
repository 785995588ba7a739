"""The drivers of the daemon. They act and report, and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sdn.drivers.netlink import Netlink
from sdn.drivers.nftables import Nftables
from sdn.drivers.openflow.client import OpenFlowClient
from sdn.drivers.ovsdb import Ovsdb


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """The drivers that the parts of the daemon share."""

    ovsdb: Ovsdb
    openflow: OpenFlowClient
    netlink: Netlink
    nftables: Nftables
