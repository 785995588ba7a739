"""What of the API's objects a node goes by. Pure.

Our master has checked every object, and keeps subnets and VNIDs apart; other API servers do neither. What is wrong
there, or is somebody else's already, is as if it were not there: closed.
"""

from __future__ import annotations

from collections.abc import Mapping

from api.network.conflicts import CURSORS, conflicting_subnets, conflicting_vnids, split_valid
from api.validation.network import check_cluster_network, check_host_subnet, check_lane
from sdn.view import Snapshot


def believed(shown: Snapshot) -> Snapshot:
    """The snapshot without what is not believed; its `doubts` say, by object, why not."""
    network = shown.cluster_network
    if network is None or CURSORS not in network.metadata.annotations:
        return shown
    networks, wrong = split_valid((network,), check_cluster_network)
    doubts = _named("clusternetwork", wrong)
    subnets, wrong = split_valid(shown.host_subnets, check_host_subnet)
    doubts |= _named("hostsubnet", wrong)
    strangers = conflicting_subnets(subnets)
    doubts |= _named("hostsubnet", {name: f"its subnet or hostIP is that of {one}" for name, one in strangers.items()})
    lanes, wrong = split_valid(shown.net_namespaces, check_lane)
    doubts |= _named("netnamespace", wrong)
    intruders = conflicting_vnids(lanes)
    doubts |= _named("netnamespace", {name: f"its VNID is that of {one}" for name, one in intruders.items()})
    return Snapshot(
        networks[0] if networks else None,
        tuple(one for one in subnets if one.metadata.name not in strangers),
        tuple(one for one in lanes if one.metadata.name not in intruders),
        doubts,
    )


def _named(kind: str, reasons: Mapping[str, str]) -> dict[str, str]:
    return {f"{kind} {name}": reason for name, reason in reasons.items()}
