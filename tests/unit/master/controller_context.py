"""The dependencies of controllers that run in a test on a storage of their own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from api.core.pod import Pod
from master.admission.chain import AdmissionChain, admission_plugins
from master.config import MasterConfig, network_config
from master.controllers.context import ControllerContext
from master.registry.creation import ObjectCreation
from master.resources.metrics import PodMetrics
from master.storage.interface import Storage


class NoUsage:
    """A collector of the usage of pods for tests without nodes."""

    async def pod_metrics(self, pods: Iterable[Pod]) -> list[PodMetrics]:
        return []


def controller_context(storage: Storage) -> ControllerContext:
    """Return a context with default settings, in which nothing is signed and nobody has rights."""
    network = network_config(MasterConfig())
    creation = ObjectCreation(
        AdmissionChain(admission_plugins(network.services, None)), lambda: datetime.now(UTC), "certificate"
    )
    return ControllerContext(
        store=storage,
        network=network,
        creation=creation,
        ca_certificate="certificate",
        node_grace_seconds=40,
        server_address=lambda: None,
        public_url=lambda: "",
        sign_token=lambda claims: "",
        clock=creation.clock,
        max_terminated_pods=10,
        version="v1.4.0",
        authorize=lambda user, attributes: False,
        issue_certificate=lambda csr: b"",
        pod_metrics=NoUsage(),
    )
