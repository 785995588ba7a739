"""The firewall's table of a node."""

from __future__ import annotations

from dataclasses import replace

from sdn.host.firewall import guarded_devices
from sdn.model.host import NETDEV, Bridge, OvsState, Port
from sdn.topology import docker_subnet
from tests.unit.sdn.examples import NODE


def test_guard_covers_devices_read_in_user_space() -> None:
    ports = (Port("eth0"), Port("tun0", type="internal"), Port("br0", type="internal"), Port("vxlan0", type="vxlan"))
    for datapath, wanted in ((NETDEV, {"eth0"}), ("system", set())):
        switch = OvsState((Bridge("br0", datapath_type=datapath, ports=ports),))
        assert guarded_devices(switch, NODE) == wanted
        assert guarded_devices(switch, replace(NODE, docker_subnet=docker_subnet(NODE.subnet))) == wanted | {"lbr0"}
