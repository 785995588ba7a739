"""podlane-sdn that is killed after a number of changing calls: `crashing_sdn.py CALLS ARGUMENTS...`."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from sdn.__main__ import main
from sdn.drivers.netlink import Netlink
from sdn.drivers.nftables import Nftables
from sdn.drivers.openflow.connection import Connection
from sdn.drivers.ovsdb import Ovsdb

ACTING: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (Netlink, ("create_veth_pair", "set_up", "delete_links", "set_gateway")),
    (Nftables, ("run",)),
    (Ovsdb, ("apply",)),
    (Connection, ("commit",)),
)
left = int(sys.argv.pop(1))


def killing(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a call that kills the process after it, if it is the last permitted one."""

    @functools.wraps(call)
    async def calling(*args: Any, **kwargs: Any) -> Any:
        global left  # noqa: PLW0603 - one count for all calls of the process
        answer = await call(*args, **kwargs)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return calling


for driver, names in ACTING:
    for name in names:
        setattr(driver, name, killing(getattr(driver, name)))
sys.exit(main())
