"""Docker's own bridge lbr0: made, verified, put right, taken away, and told to dockerd."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from reconcile.errors import Refused
from sdn.drivers.netlink import Netlink, set_sysctl
from sdn.drivers.optional_file import OptionalFile
from sdn.drivers.ovsdb import Ovsdb, RemovePort
from sdn.handouts import docker_options
from sdn.links import ALIAS, DOCKER_BRIDGE, desired_docker_bridge, is_docker_bridge
from sdn.observed import Link
from sdn.pipeline import BRIDGE, DOCKER_PORT
from sdn.view import View

log = logging.getLogger(__name__)

FIREWALL_ON_BRIDGES = "net.bridge.bridge-nf-call-iptables"
"""Switched on, the node's firewall would masquerade and filter frames on their way from a container to br0."""


class DockersBridge:
    """`options_file` is where dockerd's service looks for its options; `trouble` says why it is not to have any."""

    def __init__(self, ovsdb: Ovsdb, netlink: Netlink, options_file: str, datapath_type: str) -> None:
        self._ovsdb = ovsdb
        self._netlink = netlink
        self._options = OptionalFile(options_file)
        self._datapath_type = datapath_type
        self.trouble = ""

    async def put(self, view: View, links: Mapping[str, Link]) -> bool:
        """Make the bridge as it is wished, or take it away; whether something had to be written. Raises DriverError."""
        wish = desired_docker_bridge(view.cluster, view.node, self._datapath_type)
        here = links.get(DOCKER_BRIDGE)
        if wish is None:
            if here is not None and here.alias == ALIAS:
                await self._remove()
            return False
        if here is not None and here.alias != ALIAS:
            raise Refused(
                f"there is a link {DOCKER_BRIDGE} that Podlane did not make; it is left alone. Remove it "
                f"(ip link del {DOCKER_BRIDGE}) if nothing needs it, or leave dockerProject empty"
            )
        is_rewritten = set_sysctl(FIREWALL_ON_BRIDGES, "0", required=False)
        if is_docker_bridge(wish, links):
            return is_rewritten
        if DOCKER_PORT not in links:
            await self._ovsdb.apply((RemovePort(BRIDGE, DOCKER_PORT),))  # the switch holds on to the link that is gone
        await self._netlink.put_docker_bridge(wish)
        return True

    async def _remove(self) -> None:
        self._options.show(None)
        await self._ovsdb.apply((RemovePort(BRIDGE, DOCKER_PORT),))
        await self._netlink.remove((DOCKER_PORT, DOCKER_BRIDGE))
        log.info("removed", extra={"what": f"bridge {DOCKER_BRIDGE}"})

    def hand_over(self, view: View) -> None:
        """Tell dockerd of the bridge, as long as no pod has an address of Docker's part of the subnet."""
        subnet = view.node.docker_subnet
        if subnet is None:
            return
        self.trouble = ""
        holders = sorted(pod.address for pod in view.pods if pod.address in subnet)
        if holders:
            self.trouble = f"Docker's bridge waits: pods have addresses of its {subnet}: {' '.join(map(str, holders))}"
            log.warning(self.trouble)
        if self._options.show(None if holders else docker_options(view.cluster, view.node)):
            log.info("dockerd's options written", extra={"subnet": subnet})
