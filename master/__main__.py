"""podlane-master: keeps the cluster's objects, serves them over HTTPS, and hands out subnets and network ids.

Beside a Kubernetes that is already there it does the last of the three only.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from api.client.client import ClientError
from api.client.kubeconfig import BadKubeconfig
from master.config import MasterConfig, config_problems
from reconcile.config_file import load
from reconcile.daemon import notify, run
from reconcile.errors import DriverError

log = logging.getLogger(__name__)

PROG = "podlane-master"


def main() -> int:
    """The console script. Exit codes: 0 stopped, 1 failed, 2 wrong use."""
    settings = load(MasterConfig, PROG, "/etc/podlane/master.yaml")
    wrong = config_problems(settings)
    if wrong:
        sys.stderr.writelines(f"{PROG}: {sentence}\n" for sentence in wrong)
        return 2
    failed: list[Exception] = []

    async def serve() -> None:
        try:
            await (_serve_network_controller(settings) if settings.kubeconfig else _serve_api(settings))
        except (DriverError, ClientError, BadKubeconfig) as error:
            log.error("cannot run", extra={"error": str(error)})
            failed.append(error)

    return run(serve) or (1 if failed else 0)


async def _serve_network_controller(settings: MasterConfig) -> None:
    from master.network_controller.app import run_network_controller  # noqa: PLC0415 - 4 MB less than with the master's own

    await run_network_controller(settings)


async def _serve_api(settings: MasterConfig) -> None:
    from master.app import run_master  # noqa: PLC0415 - 1 MB less than with both

    async with run_master(settings) as master:
        log.info("serving", extra={"url": master.url, "revision": master.store.revision})
        notify("READY=1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
