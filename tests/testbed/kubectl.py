"""Every kubectl on this machine, in each protocol that it speaks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.lab.transcript import Version

PIPE = asyncio.subprocess.PIPE
PROGRAMS = {
    path.name.removeprefix("kubectl."): str(path)
    for path in sorted(Path(shutil.which("kubectl") or "/").resolve().parent.glob("kubectl.1.*"))
}


@dataclass(frozen=True)
class Kind:
    """A version, and whether it is to use WebSockets."""

    version: str
    websockets: bool

    def __str__(self) -> str:
        return f"{self.version}-{'websocket' if self.websockets else 'spdy'}"


def kinds(first_with_websockets: str) -> list[Kind]:
    """Return all versions with SPDY, and those from a first version on with WebSocket."""
    with_websockets = [Kind(version, True) for version in PROGRAMS if version >= first_with_websockets]
    return [Kind(version, False) for version in PROGRAMS] + with_websockets


def few(available: list[Kind]) -> list[Kind]:
    """Return the oldest version, and the newest with SPDY and with WebSocket."""
    return [available[0], Kind(available[-1].version, False), available[-1]]


@dataclass
class Kubectl:
    """One kubectl against one server, always in the same protocol."""

    kind: Kind
    url: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        flag = "true" if self.kind.websockets else "false"
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": flag,
            "KUBECTL_PORT_FORWARD_WEBSOCKETS": flag,
        }

    def words(self, *words: str) -> tuple[str, ...]:
        return (PROGRAMS[self.kind.version], f"--server={self.url}", *words)

    async def start(self, *words: str, stdout: int = PIPE) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.words(*words), stdin=PIPE, stdout=stdout, stderr=PIPE, env=self.environment
        )

    async def __call__(self, *words: str, given: bytes = b"") -> tuple[int | None, bytes, bytes]:
        program = await self.start(*words)
        async with asyncio.timeout(60):
            out, err = await program.communicate(given)
        return program.returncode, out, err


RunKubectl = Callable[..., subprocess.CompletedProcess[str]]


NAMESPACE_MANIFEST = "apiVersion: v1\nkind: Namespace\nmetadata: {name: PROJECT}\n"


FIRST = shutil.which("kubectl") or "/"


ALL_PROGRAMS = sorted(map(str, Path(FIRST).resolve().parent.glob("kubectl.*"))) or [FIRST]
"""Every version once: a `kubectl` beside others whose names have a version is one of these."""

OLDEST_AND_NEWEST = ALL_PROGRAMS[:: max(1, len(ALL_PROGRAMS) - 1)]


def version_of(program: str) -> Version:
    done = subprocess.run([program, "version", "--client", "-o", "json"], capture_output=True, text=True, check=True)
    actual = json.loads(done.stdout)["clientVersion"]
    return int(actual["major"]), int(re.sub(r"\D.*", "", actual["minor"]))
