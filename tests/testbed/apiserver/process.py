"""podlane-master as a process on a free port of loopback."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 30.0


class ApiServer:
    """The command, started and killed at will; its state outlives it."""

    def __init__(self, root: Path, *flags: str) -> None:
        self.kubeconfig = root / "admin.kubeconfig"
        self.root = root
        self._flags = flags
        self._log = root / "log"
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Only that; it does not serve yet."""
        command = (
            Path(sys.executable).with_name("podlane-master"),
            *("--config", "/dev/null", "--listen-address", "127.0.0.1", "--advertise-address", "127.0.0.1"),
            *(
                "--port",
                str(self._port),
                "--dns-port",
                "0",
                "--state-dir",
                self.root / "state",
                "--admin-kubeconfig",
                self.kubeconfig,
            ),
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, *self._flags], stdout=log, stderr=log)

    def start(self) -> None:
        """Start the server and wait until it serves. A restart uses the same port, so the kubeconfig stays valid."""
        begin = self._log.stat().st_size if self._log.exists() else 0
        self.launch()
        assert self._process is not None
        deadline = time.monotonic() + SECONDS
        while (actual := re.search(r"https://127\.0\.0\.1:(\d+)", self._log.read_bytes()[begin:].decode())) is None:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        self._port = int(actual[1])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Return the server's log."""
        return self._log.read_text()

    def wait(self) -> int:
        """Wait until it ends by itself, and return its exit code."""
        assert self._process is not None
        return self._process.wait(SECONDS)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """End it. Returns its exit code."""
        assert self._process is not None
        self._process.send_signal(with_signal)
        return self.wait()
