"""Reconciles the pod network of one node.

A pass first removes the flows of removed pods, then changes ports and links, then installs the flows of new pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from reconcile.errors import DriverError
from sdn import metrics
from sdn.cniserver.attacher import PodAttacher
from sdn.config import NodeIdentity
from sdn.drivers import Drivers
from sdn.host.reconciler import HostReconciler
from sdn.metrics import Drift, timed
from sdn.model.flow import Flow, FlowSet
from sdn.network_state import NetworkState
from sdn.pipeline.compiler import compile_flows
from sdn.pipeline.cookies import DROP_BIT
from sdn.pipeline.drops import drop_counters
from sdn.pipeline.flows import Partition
from sdn.topology import (
    AttachedPod,
    NodeNetwork,
    NodeNetworkConfig,
    Snapshot,
    Unavailable,
    network_config,
    node_network,
)

log = logging.getLogger(__name__)


class NetworkController:
    """Controller of the pod network.

    `snapshot` returns the network objects of the API, or None while the informers are not in sync. `state` is updated
    by every pass.
    """

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        drivers: Drivers,
        host: HostReconciler,
        attacher: PodAttacher,
        state: NetworkState,
        drift: Drift,
        snapshot: Callable[[], Snapshot | None],
    ) -> None:
        self._identity = identity
        self._drivers = drivers
        self._host = host
        self._attacher = attacher
        self._state = state
        self._drift = drift
        self._snapshot = snapshot
        self._config_inputs: tuple[Snapshot, int] | None = None
        self._config: NodeNetworkConfig | Unavailable = Unavailable("starting")
        self._flows: frozenset[Flow] = frozenset()
        self._network_inputs: tuple[NodeNetworkConfig, tuple[AttachedPod, ...]] | None = None
        self._network: NodeNetwork | None = None
        self._compiled_network: NodeNetwork | None = None

    async def reconcile(self) -> None:
        """Run one pass. Raises DriverError; the next pass starts from the beginning."""
        begin = time.perf_counter()
        try:
            await self._reconcile()
        except DriverError as error:
            self._state.not_ready_reason = str(error)
            raise
        finally:
            self._state.reconcile_milliseconds = (time.perf_counter() - begin) * 1000

    async def _reconcile(self) -> None:
        config = await timed("observe", self._network_config())
        if isinstance(config, Unavailable):
            self._state.not_ready_reason = config.reason
            return
        desired = self._desired_network(config)
        is_full = await timed("host", self._host.reconcile(desired))
        self._state.docker_bridge_problem = self._host.docker_bridge.not_ready_reason
        self._state.firewall_problem = self._host.firewall_problem
        await timed("detach", self._detach_pods(config))
        await self._attacher.restore_ports(self._host.links if is_full else None)
        await self._attacher.attach_pods(desired)
        await self._attacher.apply_rate_limits(is_full=is_full)
        await timed("flows", self._install_flows_and_complete_requests())
        if is_full:
            await self._export_drop_metrics()

    async def _network_config(self) -> NodeNetworkConfig | Unavailable:
        """Return the configuration that follows from the API and from the MTU of the underlay."""
        snapshot = self._snapshot()
        if snapshot is None:
            return Unavailable("waiting for the master's first answer")
        inputs = (snapshot, await self._host.pod_mtu())
        if self._config_inputs is None or self._config_inputs[0] is not snapshot or self._config_inputs != inputs:
            self._config = network_config(snapshot, self._identity, inputs[1])
            self._config_inputs = inputs
            self._state.config = self._config if isinstance(self._config, NodeNetworkConfig) else None
        return self._config

    def _desired_network(self, config: NodeNetworkConfig) -> NodeNetwork:
        """Return what this node must hold: the configuration with the pods on the bridge.

        As long as neither changes, it is the same value.
        """
        pods, known = self._attacher.attached_pods(), self._network_inputs
        if self._network is None or known is None or known[0] is not config or known[1] is not pods:
            self._network, self._network_inputs = node_network(config, pods), (config, pods)
        return self._network

    async def _detach_pods(self, config: NodeNetworkConfig) -> None:
        """Remove flows before ports, so that no flow names a port number that another pod may get."""
        leaving = await self._attacher.pods_to_detach()
        if not leaving:
            return
        if self._attacher.has_ports(leaving):
            staying = (pod for pod in self._attacher.attached_pods() if pod.sandbox not in leaving)
            await self._install_flows(node_network(config, staying))
        await self._attacher.detach_pods(leaving)

    async def _install_flows_and_complete_requests(self) -> None:
        """Install the flows of all pods that are on the bridge now, and complete the requests to attach."""
        config = await self._network_config()
        if isinstance(config, Unavailable):
            self._state.not_ready_reason = config.reason
            return
        network = self._desired_network(config)
        await self._install_flows(network)
        if self._state.network is not network:
            metrics.set_pod_counts(network)
        self._state.network, self._state.not_ready_reason = network, ""
        self._attacher.complete_requests(network)

    async def _install_flows(self, network: NodeNetwork) -> None:
        flows = self._flows if network is self._compiled_network else compile_flows(network)
        change = await self._drivers.openflow.sync(Partition.NODE, FlowSet(flows))
        change += await self._drivers.openflow.restore()
        if change and flows == self._flows:
            self._drift.record("flows", f"({change.added} missing, {change.removed} unexpected)")
        elif change:
            log.info("flows changed", extra={"added": change.added, "removed": change.removed, "total": len(flows)})
        self._flows, self._compiled_network = flows, network
        self._state.flow_count = len(flows)
        metrics.FLOWS.set(len(flows))
        metrics.FLOW_CHANGES.labels("added").inc(change.added)
        metrics.FLOW_CHANGES.labels("removed").inc(change.removed)

    async def _export_drop_metrics(self) -> None:
        openflow = self._drivers.openflow
        counts = await openflow.packet_counts(DROP_BIT)
        flow_counts = {flow: count for flow, count in counts.items() if isinstance(flow, Flow)}
        table_misses = await openflow.table_misses()
        metrics.set_dropped_packets(drop_counters(flow_counts, table_misses, self._attacher.pod_names()))
