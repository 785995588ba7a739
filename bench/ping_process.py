"""The longest pause of an API server, as a client sees it that sends one small request after the other.

`python -m bench.ping_process KUBECONFIG` prints for each line on standard input the longest time of a response, in
milliseconds, since the line before.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from subprocess import PIPE, Popen
from urllib.parse import urlsplit

from api.client.kubeconfig import Kubeconfig

PATH = "/livez"
PAUSE_SECONDS = 0.001


class PingProcess:
    """The process, seen from the benchmark."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process
        self.longest_milliseconds()

    def longest_milliseconds(self) -> float:
        """Return the longest time of a response since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


@contextmanager
def pinging(kubeconfig: Path) -> Iterator[PingProcess]:
    """Run the process in the context."""
    command = [sys.executable, "-m", "bench.ping_process", str(kubeconfig)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield PingProcess(process)
        finally:
            process.kill()


def _main(kubeconfig: str) -> None:
    config = Kubeconfig.load(Path(kubeconfig))
    server = urlsplit(config.server)
    connection = http.client.HTTPSConnection(server.hostname or "", server.port, context=config.ssl_context())
    longest = 0.0
    while True:
        begin = time.monotonic()
        connection.request("GET", PATH)
        connection.getresponse().read()
        longest = max(longest, time.monotonic() - begin)
        if select([0], [], [], PAUSE_SECONDS)[0]:
            if not os.read(0, 1 << 10):
                return
            print(longest * 1000, flush=True)
            longest = 0.0


if __name__ == "__main__":
    _main(sys.argv[1])
