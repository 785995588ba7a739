"""A dockerd of the tests' own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

DEADLINE_SECONDS = 30.0


FLAGS = os.environ.get("PODLANE_DOCKERD_FLAGS", "").split()
"""More flags of dockerd: machines of tests/vm have other cgroup drivers."""


IGNORES_SIGTERM = ("tail", "-f", "/dev/null")


@dataclass(frozen=True, slots=True)
class Dockerd:
    """A dockerd without a network in a directory of its own; pulls go nowhere. `command_prefix` starts it."""

    root: Path
    flags: tuple[str, ...] = ()
    command_prefix: tuple[str, ...] = ()

    @property
    def socket(self) -> Path:
        return self.root / "docker.sock"

    def command(self) -> list[str]:
        return [
            *self.command_prefix,
            "dockerd",
            f"--data-root={self.root}/data",
            f"--exec-root={self.root}/exec",
            f"--host=unix://{self.socket}",
            f"--pidfile={self.root}/pid",
            "--bridge=none",
            "--iptables=false",
            "--ip-forward=false",
            "--storage-driver=overlay2",
            *self.flags,
            *FLAGS,
        ]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}

    def start(self) -> subprocess.Popen[bytes]:
        with (self.root / "log").open("ab") as log:
            process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.environment())
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._answers():
            assert process.poll() is None, (self.root / "log").read_text()
            assert time.monotonic() < deadline, (self.root / "log").read_text()
            time.sleep(0.05)
        return process

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as ours:
            return ours.connect_ex(str(self.socket)) == 0

    def client(self) -> Any:
        return docker.APIClient(base_url=f"unix://{self.socket}", version="1.41")
