"""The kubeconfig of the node, which the node agent writes when the node has joined."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from api.client.kubeconfig import Kubeconfig
from reconcile.daemon import notify

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0


async def load_kubeconfig(file: str) -> Kubeconfig:
    """Return the kubeconfig, and wait until it exists. Raises BadKubeconfig.

    The agent starts after this daemon, and an administrator may have to approve its request: the service manager does
    not wait for that.
    """
    path = Path(file)
    if not await asyncio.to_thread(path.exists):
        notify("READY=1")
        hint = "the node agent writes it when this node has joined; its log names a request that waits for approval"
        log.warning("waiting for the kubeconfig", extra={"file": file, "hint": hint})
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - a file that another process writes
            await asyncio.sleep(POLL_SECONDS)
        log.info("found the kubeconfig", extra={"file": file})
    return await asyncio.to_thread(Kubeconfig.load, path)
