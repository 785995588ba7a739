"""The node agent, killed by SIGKILL before each changing call, and once more while Docker executes it.

It is killed once for each call of the share MORTAL_SHARE and started again. The calls are written to the file
MORTAL_RECORD. They are requests to Docker, programs that are run, and changes to files below the directories
MORTAL_PLACES (PEP 578).
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from node_agent.__main__ import main
from tests.testbed.fault_injection import FILE_EVENTS, Share

RECORD = Path(os.environ["MORTAL_RECORD"])
PLACES = tuple(os.environ["MORTAL_PLACES"].split(":"))
SHARE = Share.parse(os.environ["MORTAL_SHARE"])
SEEN: set[str] = set()
CREATED: list[str] = []
"""The name of the newest container: it is the next to be started."""

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
PLAIN = (
    (re.compile(r"containers/[0-9a-f]{64}/start"), "start"),
    (re.compile(r"[0-9a-f]{64}(?!.*force=True)|[0-9a-f]{8}-[0-9a-f-]{27}"), "ID"),
    (re.compile(r"\.\.20[0-9_]+\.[0-9]+"), "..TIME"),
    (re.compile(r"/sys/fs/cgroup/\w+/[^/]+(/kubepods|/besteffort|/podID)*"), "GROUP"),
    (re.compile(r"/proc/[0-9]+/fd/[0-9]+|[0-9]{7,}"), "NUMBER"),
    (re.compile(r"filters=[^&]*|since=[^&]*"), ""),
    (re.compile(r"/(first|main)(?=/|-ID)"), "/CONTAINER"),
    (re.compile(r"_(first|main)-ID"), "_CONTAINER-ID"),
    (re.compile(r"/logs/(.*)/[01]\.(log|new)"), r"/logs/\1/LINK.\2"),
    (re.compile(r"~(configmap|secret)/(words|hidden)/(.*)/(one|two)"), r"~FILES/NAME/\3/FILE"),
    (re.compile(r"~(configmap|secret)/(words|hidden)/\.\."), r"~FILES/NAME/.."),
)
"""Calls that differ only in these patterns count as one."""


def kill_once(act: str) -> None:
    """Kill this process, unless it was killed at this call before."""
    for pattern, name in PLAIN:
        act = pattern.sub(name, act)
    if act not in SEEN and SHARE.has(act):
        with RECORD.open("a") as record:
            record.write(f"{act}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def audit_hook(event: str, about: tuple[Any, ...]) -> None:
    """Kill this process before a changing call."""
    if event == "http.client.send" and bytes(about[1][:7]).startswith((b"POST", b"DELETE", b"GET")):
        requested = about[1].split(b" HTTP/")[0].decode()
        kill_once(f"{requested} {CREATED if '/start' in requested else ''}")
    elif event == "subprocess.Popen":
        kill_once(f"run {' '.join(about[1])}")
    elif event in FILE_EVENTS and str(about[0]).startswith(PLACES) and (event != "open" or (about[2] or 0) & CHANGES):
        kill_once(f"{event} {about[0]}")


def kill_during_docker_requests() -> None:
    """Kill this process also after Docker has received a request that changes something."""
    put, get = http.client.HTTPConnection.putrequest, http.client.HTTPConnection.getresponse

    def putrequest(self: Any, method: str, url: str, *words: Any, **more: Any) -> None:
        if "/create" in url:
            CREATED[:] = [url.partition("name=")[2]]
        self.operation = "" if method == "GET" else f"sent {method} {url} {CREATED if '/start' in url else ''}"
        put(self, method, url, *words, **more)

    def getresponse(self: Any, *words: Any, **more: Any) -> http.client.HTTPResponse:
        if self.operation:
            kill_once(self.operation)
        return get(self, *words, **more)

    http.client.HTTPConnection.putrequest = putrequest  # type: ignore[method-assign]
    http.client.HTTPConnection.getresponse = getresponse  # type: ignore[method-assign]


def restart_until_survived() -> int:
    """Start the agent again after each kill, as the service manager does. Modules are imported once."""
    while True:
        child = os.fork()
        if not child:
            SEEN.update(RECORD.read_text().splitlines() if RECORD.exists() else ())
            kill_during_docker_requests()
            sys.addaudithook(audit_hook)
            return main()
        signal.signal(signal.SIGTERM, lambda *_, child=child: os.kill(child, signal.SIGTERM))
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(restart_until_survived())
