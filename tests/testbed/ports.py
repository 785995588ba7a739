"""Free TCP ports."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a TCP port of loopback on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
