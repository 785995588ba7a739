"""The network of this node as the last pass left it.

The controller writes it; the CNI server, the service proxy, cluster DNS and the query handler read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sdn.topology import NodeNetwork, NodeNetworkConfig


@dataclass(slots=True)
class NetworkState:
    """State of the pod network of this node.

    `config` is the newest network configuration, None while the API does not give one. `network` is what the switch
    has flows for, None until the first successful pass. `not_ready_reason` is empty if the last pass succeeded.
    `docker_bridge_problem` says why Docker does not get a bridge; empty if nothing prevents it.
    `lost_peers` are peers that do not answer through the tunnel; None until that is known.
    `firewall_problem` names tables of others that may drop packets of pods; empty if there are none.
    """

    config: NodeNetworkConfig | None = None
    network: NodeNetwork | None = None
    not_ready_reason: str = "starting"
    docker_bridge_problem: str = ""
    firewall_problem: str = ""
    lost_peers: tuple[str, ...] | None = None
    flow_count: int = 0
    reconcile_milliseconds: float = 0.0

    @property
    def published_config(self) -> NodeNetworkConfig | None:
        """The newest configuration; None until flows of one are installed. Its own flows may be missing after an error.

        Services and DNS follow it.
        """
        return self.config if self.network is not None else None
