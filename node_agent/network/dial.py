"""Opens a connection inside a pod's network namespace. Driver."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from functools import partial

from reconcile.errors import DriverError, Gone, Refused
from streams.connection import Connection

CONNECT_SECONDS = 10.0
"""Nobody listens so far away that it takes longer; who does not answer has too many waiting already."""

PLACES = ((socket.AF_INET, "127.0.0.1", "tcp4 127.0.0.1"), (socket.AF_INET6, "::1", "tcp6 [::1]"))

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


async def dial_in_namespace(pid: int, port: int) -> Connection:
    """Connect to 127.0.0.1, else to [::1], in the network namespace of a process: that of the pod's sandbox.

    Raises Gone when there is no such process, Refused when nobody listens, in the words of a runtime of Kubernetes.
    """
    failures = []
    for family, address, name in PLACES:
        try:
            return await _connect(await _socket_in(pid, family), address, port)
        except TimeoutError:
            failures.append(f"dial {name}:{port}: i/o timeout")
        except OSError as error:
            failures.append(f"dial {name}:{port}: connect: {os.strerror(error.errno or 0).lower()}")
    where = f'failed to connect to localhost:{port} inside namespace "/proc/{pid}/ns/net"'
    raise Refused(f"{where}, IPv4: {failures[0]} IPv6 {failures[1]}")


async def _connect(unconnected: socket.socket, address: str, port: int) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await loop.sock_connect(unconnected, (address, port))
        _, connection = await loop.create_connection(Connection, sock=unconnected)
    except BaseException:
        unconnected.close()
        raise
    return connection


async def _socket_in(pid: int, family: socket.AddressFamily) -> socket.socket:
    """A socket of that namespace; it stays there, whoever uses it. Raises Gone, Refused, OSError.

    The thread that makes it goes there and ends there, so that no other work is ever done in a foreign namespace.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[socket.socket] = loop.create_future()

    def tell(made: socket.socket | DriverError | OSError) -> None:
        if isinstance(made, socket.socket):
            made.close() if told.done() else told.set_result(made)
        elif not told.done():
            told.set_exception(made)

    def make() -> None:
        try:
            made: socket.socket | DriverError | OSError = _made_in(pid, family)
        except (DriverError, OSError) as error:
            made = error
        loop.call_soon_threadsafe(partial(tell, made))

    threading.Thread(target=make, name=f"dial-{pid}", daemon=True).start()
    try:
        return await told
    except asyncio.CancelledError:
        # It may have been told just before, so that nobody else closes it.
        if told.done() and not told.cancelled() and told.exception() is None:
            told.result().close()
        raise


def _made_in(pid: int, family: socket.AddressFamily) -> socket.socket:
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Gone(f"/proc/{pid}/ns/net: {error.strerror}; the sandbox is gone") from None
    try:
        if _LIBC.setns(namespace, _CLONE_NEWNET):
            raise Refused(f"/proc/{pid}/ns/net: cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(namespace)
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.setblocking(False)
    return made
