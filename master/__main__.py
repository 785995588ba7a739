"""podlane-master: stores the cluster's objects, serves them over HTTPS, and allocates subnets and VNIDs.

With --kubeconfig it runs only the network controllers, on the API server of another cluster.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

from api.client.kubeconfig import BadKubeconfig, kubeconfig_problems
from master.config import MasterConfig, config_problems
from master.own_addresses import is_own, own_addresses
from reconcile.config_file import load, read
from reconcile.config_schema import problem
from reconcile.daemon import notify, run
from reconcile.errors import DriverError
from reconcile.imports import without_system_authorities
from reconcile.malloc import frozen_imports
from reconcile.reload import Reloader

log = logging.getLogger(__name__)

PROG, FILE = "podlane-master", "/etc/podlane/master.yaml"


def main() -> int:
    """Run the console script. Exit codes: 0 stopped, 1 failed, 2 invalid configuration."""
    settings = load(MasterConfig, PROG, FILE, problems=_problems, file_problems=_problems_of_check)
    with frozen_imports(), without_system_authorities():  # Each client of the master has a TLS context of its own.
        from api.client.client import ClientError  # noqa: PLC0415
    errors: list[Exception] = []

    async def serve() -> None:
        try:
            await (_serve_network_controller(settings) if settings.kubeconfig else _serve_api(settings))
        except (DriverError, ClientError, BadKubeconfig) as error:
            for line in str(error).splitlines() or [type(error).__name__]:
                log.error("cannot run", extra={"error": line})
            errors.append(error)

    return run(serve, settings.log_level, lambda: Reloader(settings, _read_again)) or (1 if errors else 0)


def _read_again() -> MasterConfig:
    return read(MasterConfig, PROG, FILE, problems=_problems, file_problems=_problems_of_check)


def _problems(settings: MasterConfig) -> Iterator[str]:
    """Yield what is wrong with the settings, and with the host and the files without which no master starts."""
    wrong = tuple(config_problems(settings))
    yield from wrong
    if settings.kubeconfig:
        return
    if not wrong and not is_own(settings.advertise_address):
        accepted = f"an address of this host is accepted: {', '.join(own_addresses())}"
        yield problem("advertiseAddress", settings.advertise_address, accepted)
    if settings.identity_providers or settings.audit_policy_file or settings.project_request_template:
        with frozen_imports():
            from master import config_files  # noqa: PLC0415 - 1 MB less for those who use none
        yield from config_files.file_problems(settings)


def _problems_of_check(settings: MasterConfig) -> Iterator[str]:
    """Yield what is wrong with files in which one line may be wrong, or that may appear when the master runs."""
    if settings.kubeconfig:
        yield from kubeconfig_problems("kubeconfig", settings.kubeconfig)
    elif settings.identity_providers:
        from master import config_files  # noqa: PLC0415

        yield from config_files.password_file_problems(settings)


async def _serve_network_controller(settings: MasterConfig) -> None:
    with frozen_imports():
        from master.network_controller.app import run_network_controller  # noqa: PLC0415 - 4 MB less than with the master's own

    await run_network_controller(settings)


async def _serve_api(settings: MasterConfig) -> None:
    with frozen_imports():
        from master.app import run_master  # noqa: PLC0415 - 1 MB less than with both

    async with run_master(settings) as master:
        log.info("serving", extra={"url": master.url, "revision": master.store.revision})
        notify("READY=1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
