"""What the workers of this node's pods act with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from api.objects import Pod, PodStatus
from api.services import Service
from node_agent.containers import Host
from node_agent.drivers.docker import Docker
from node_agent.pod_cgroups import PodCgroups
from node_agent.pod_network import SandboxNetwork
from node_agent.prober import Probing
from node_agent.references import References
from node_agent.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Tools:
    """The same for every pod. `event` tells (pod, reason, message, container or nothing)."""

    docker: Docker
    network: SandboxNetwork
    host: Host
    node_address: str
    pause_image: str
    report: Callable[[str, PodStatus], None]
    gone: Callable[[str], None]
    event: Callable[[Pod, str, str, str], None]
    references: References
    tokens: Tokens
    cgroups: PodCgroups
    probing: Probing
    services: Callable[[Pod], Collection[Service]]
