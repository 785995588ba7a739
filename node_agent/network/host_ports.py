"""Host ports: the nftables table, and the loop that applies it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from api.core.pod import Pod
from api.core.resource_requests import all_containers
from reconcile.errors import NotReady, Refused
from reconcile.loop import Loop, LoopTiming

TABLE = "podlane-hostports"

DSTNAT_PRIORITY = -100
"""The priority `dstnat` as a number, because nft accepts the name only in the hook prerouting."""

RESYNC_SECONDS = 60.0


class HostPortManager:
    """The loop that applies the ruleset of the pods' host ports (kubelet: hostport manager).

    `active_pods` returns the pods of this node that have not ended. `sources_ready` returns whether every source of
    pods was read. Before that nothing is applied, so that the ports of running pods stay.
    """

    def __init__(self, active_pods: Callable[[], Iterable[Pod]], sources_ready: Callable[[], bool]) -> None:
        self.loop = Loop("host ports", self._sync, LoopTiming(resync=RESYNC_SECONDS))
        self._active_pods = active_pods
        self._sources_ready = sources_ready
        self._applied = ""

    async def _sync(self) -> None:
        """Apply the ruleset if it has changed or is not empty. Raises NotReady, Refused."""
        if not self._sources_ready():
            return
        ruleset = hostport_ruleset(self._active_pods())
        if ruleset != self._applied or ruleset != NO_HOST_PORTS:
            await apply_ruleset(ruleset)
            self._applied = ruleset


def hostport_ruleset(pods: Iterable[Pod]) -> str:
    """Return the nft commands that replace the table of host ports. Without host ports, they remove the table.

    Packets to a host port, from other hosts or from this one, are redirected to the pod. Without a hostIP the port is
    open on all addresses of the host except loopback addresses. The pod sees the client's address. If two pods have the
    same host port, the first one by namespace and name gets the packets.
    """
    rules: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        if pod.spec.host_network or not pod.status.pod_ip:
            continue
        for container in all_containers(pod):
            for port in container.ports:
                if port.host_port:
                    any_address = port.host_ip in {"", "0.0.0.0"}
                    destination = "fib daddr type local" if any_address else f"ip daddr {port.host_ip}"
                    match = f"{destination} {port.protocol.lower()} dport {port.host_port}"
                    rules.setdefault(match, f"dnat to {pod.status.pod_ip}:{port.container_port}")
    reset = f"add table ip {TABLE}\ndelete table ip {TABLE}\n"
    if not rules:
        return reset
    lines = "".join(f"\t\t{match} {target}\n" for match, target in rules.items())
    chains = "".join(
        f"\tchain {hook} {{\n\t\ttype nat hook {hook} priority {DSTNAT_PRIORITY}; policy accept;\n"
        f"\t\tip daddr 127.0.0.0/8 return\n{lines}\t}}\n"
        for hook in ("prerouting", "output")
    )
    return f"{reset}table ip {TABLE} {{\n{chains}}}\n"


NO_HOST_PORTS = hostport_ruleset(())


async def apply_ruleset(text: str) -> None:
    """Apply nft commands, all of them or none. Raises Refused with nft's message, NotReady if nft cannot be run."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nft",
            "-f",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NotReady(f"nft cannot be run: {error}") from None
    _, stderr = await process.communicate(text.encode())
    if process.returncode:
        message = " ".join(stderr.decode(errors="replace").split())
        raise Refused(f"nft -f - (exit {process.returncode}): {message}; the table is unchanged")
