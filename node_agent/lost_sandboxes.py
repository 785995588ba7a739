"""What lost its DEL: the agent was away, or died, between the end of a sandbox and the word to the network."""

from __future__ import annotations

import logging

from node_agent.drivers.docker import Docker
from node_agent.pod_network import SandboxNetwork

log = logging.getLogger(__name__)


async def detach_lost(docker: Docker, network: SandboxNetwork) -> None:
    """Detach what is attached on our behalf and whose sandbox Docker no longer has. Raises NotReady.

    The network is asked first: a sandbox that it names has been made before, so Docker, asked afterwards, knows it
    unless it is gone. In the other order a sandbox that is just being made would look like a lost one.
    """
    attached = await network.sandboxes()
    if not attached:
        return
    for sandbox in sorted(attached - await docker.sandboxes()):
        log.info("detaching what a sandbox left behind", extra={"sandbox": sandbox[:12]})
        await network.detach(sandbox)
