"""A request to a switch over its control socket, without a process for each."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path


def call_appctl(control: Path, command: str) -> str:
    """Return what `ovs-appctl` prints for a command without arguments."""
    received = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(control))
        connection.sendall(json.dumps({"id": 0, "method": command, "params": []}).encode())
        while chunk := connection.recv(1 << 16):
            received += chunk
            with contextlib.suppress(ValueError):  # The answer has no length: it is complete when it can be decoded.
                return str(json.loads(received)["result"])
    raise ConnectionError(f"{control}: no complete answer to {command}")
