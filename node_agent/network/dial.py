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

CONNECT_TIMEOUT_SECONDS = 10.0
"""Time limit for a connection. The server is on this host, so a slower one has a full queue of connections."""

LOOPBACK_ADDRESSES = ((socket.AF_INET, "127.0.0.1", "tcp4 127.0.0.1"), (socket.AF_INET6, "::1", "tcp6 [::1]"))
"""Address family, address, and name of the address in errors."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


async def dial_in_namespace(pid: int, port: int) -> Connection:
    """Connect to 127.0.0.1, or else to [::1], in the network namespace of a process: that of the pod's sandbox.

    Raises Gone if there is no such process, and Refused if no server listens, with the message of containerd.
    """
    failures = []
    for family, address, name in LOOPBACK_ADDRESSES:
        try:
            return await _connect(await _open_socket(pid, family), address, port)
        except TimeoutError:
            failures.append(f"dial {name}:{port}: i/o timeout")
        except OSError as error:
            failures.append(f"dial {name}:{port}: connect: {os.strerror(error.errno or 0).lower()}")
    message = f'failed to connect to localhost:{port} inside namespace "/proc/{pid}/ns/net"'
    raise Refused(f"{message}, IPv4: {failures[0]} IPv6 {failures[1]}")


async def _connect(unconnected: socket.socket, address: str, port: int) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            await loop.sock_connect(unconnected, (address, port))
        _, connection = await loop.create_connection(Connection, sock=unconnected)
    except BaseException:
        unconnected.close()
        raise
    return connection


async def _open_socket(pid: int, family: socket.AddressFamily) -> socket.socket:
    """Return a socket of the network namespace of a process. It stays in that namespace. Raises Gone, Refused, OSError.

    A thread of its own enters the namespace, creates the socket and ends, so that no other work runs in the namespace.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[socket.socket] = loop.create_future()

    def set_result(result: socket.socket | DriverError | OSError) -> None:
        if isinstance(result, socket.socket):
            if opened.done():
                result.close()
            else:
                opened.set_result(result)
        elif not opened.done():
            opened.set_exception(result)

    def run() -> None:
        try:
            result: socket.socket | DriverError | OSError = _open_socket_in_thread(pid, family)
        except (DriverError, OSError) as error:
            result = error
        loop.call_soon_threadsafe(partial(set_result, result))

    threading.Thread(target=run, name=f"dial-{pid}", daemon=True).start()
    try:
        return await opened
    except asyncio.CancelledError:
        # The result may have been set just before the cancellation. Then the socket has no other owner.
        if opened.done() and not opened.cancelled() and opened.exception() is None:
            opened.result().close()
        raise


def _open_socket_in_thread(pid: int, family: socket.AddressFamily) -> socket.socket:
    """Move the calling thread into the network namespace of a process, and return a socket of that namespace."""
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Gone(f"/proc/{pid}/ns/net: {error.strerror}; the sandbox is gone") from None
    try:
        if _LIBC.setns(namespace, _CLONE_NEWNET):
            raise Refused(f"/proc/{pid}/ns/net: cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(namespace)
    opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    opened.setblocking(False)
    return opened
