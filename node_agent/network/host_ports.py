"""Host ports: the nftables table, and the loop that applies it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from api.core.pod import Pod
from api.core.resources import all_containers
from reconcile.errors import NotReady, Refused
from reconcile.loop import Loop, LoopTiming

RESYNC_SECONDS = 60.0


async def apply_ruleset(text: str) -> None:
    """Run all commands or none. Raises Refused with nft's own words, NotReady where there is no nft."""
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
    _, said = await process.communicate(text.encode())
    if process.returncode:
        words = " ".join(said.decode(errors="replace").split())
        raise Refused(f"nft -f - (exit {process.returncode}): {words}; the table is as it was")


TABLE = "podlane-hostports"
DSTNAT = -100
"""The place of `dstnat`, a name that nft takes in the hook prerouting alone."""


def hostport_ruleset(pods: Iterable[Pod]) -> str:
    """Replace our table as a whole; without any port there is none.

    What comes to the host at such a port, from outside or from the host itself, goes to the pod; without a hostIP at
    any address of the host but its loopback ones. The pod sees who has asked. Where two pods ask for the same port the
    first by name has it.
    """
    rules: dict[str, str] = {}
    for pod in sorted(pods, key=lambda one: (one.metadata.namespace, one.metadata.name)):
        if pod.spec.host_network or not pod.status.pod_ip:
            continue
        for container in all_containers(pod):
            for port in container.ports:
                if port.host_port:
                    at = f"ip daddr {port.host_ip}" if port.host_ip not in {"", "0.0.0.0"} else "fib daddr type local"
                    match = f"{at} {port.protocol.lower()} dport {port.host_port}"
                    rules.setdefault(match, f"dnat to {pod.status.pod_ip}:{port.container_port}")
    fresh = f"add table ip {TABLE}\ndelete table ip {TABLE}\n"
    if not rules:
        return fresh
    lines = "".join(f"\t\t{match} {target}\n" for match, target in rules.items())
    chains = "".join(
        f"\tchain {hook} {{\n\t\ttype nat hook {hook} priority {DSTNAT}; policy accept;\n"
        f"\t\tip daddr 127.0.0.0/8 return\n{lines}\t}}\n"
        for hook in ("prerouting", "output")
    )
    return f"{fresh}table ip {TABLE} {{\n{chains}}}\n"


NO_HOST_PORTS = hostport_ruleset(())


class HostPortManager:
    """Applies the ruleset of the pods' host ports in the background (kubelet: hostport manager).

    `active_pods` returns the pods of this node that have not ended. `all_pods_known` says whether every source of pods
    was read; before that nothing is applied, so that the ports of running pods stay.
    """

    def __init__(self, active_pods: Callable[[], Iterable[Pod]], all_pods_known: Callable[[], bool]) -> None:
        self.loop = Loop("host ports", self._sync, LoopTiming(resync=RESYNC_SECONDS))
        self._active_pods = active_pods
        self._all_pods_known = all_pods_known
        self._applied = ""

    async def _sync(self) -> None:
        """Apply the ruleset if it has changed or is not empty. Raises NotReady, Refused."""
        if not self._all_pods_known():
            return
        ruleset = hostport_ruleset(self._active_pods())
        if ruleset != self._applied or ruleset != NO_HOST_PORTS:
            await apply_ruleset(ruleset)
            self._applied = ruleset
