"""`systemctl reload`: the daemons read their settings again at SIGHUP."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.process import run
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.ports import free_port
from tests.testbed.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
DAEMONS = ("podlane-master", "podlane-sdn", "podlane-node-agent")


class Daemon:
    """A daemon with a configuration file, on its own."""

    def __init__(self, name: str, root: Path, kubeconfig: Path) -> None:
        self.file, self.log = root / "settings.yaml", root / "log"
        self._lines = {
            "podlane-master": (
                f"stateDir: {root}/state\nadvertiseAddress: 127.0.0.1\nlistenAddress: 127.0.0.1\nport: 0\ndnsPort: 0\n"
            ),
            "podlane-sdn": (
                f"nodeName: n\nnodeIp: 127.0.0.1\nkubeconfig: {kubeconfig}\nsocket: {root}/sdn.sock\n"
                f"stateDir: {root}\novsRundir: {root}\nhealthAddress: 127.0.0.1:{free_port()}\n"
            ),
            "podlane-node-agent": (
                f"nodeName: n\nnodeIp: 127.0.0.1\nkubeconfig: {kubeconfig}\nstateDir: {root}/state\nnetwork: none\n"
                f"dockerSocket: {root}/docker.sock\nsocket: {root}/agent.sock\nport: {free_port()}\n"
                f"healthAddress: 127.0.0.1:{free_port()}\nmanifestDir: {root}/manifests\npodLogsDir: {root}/a\n"
                f"containerLogsDir: {root}/b\nserverTlsBootstrap: false\nrotateCertificates: false\n"
            ),
        }[name]
        self.write("")
        self.check = (Path(sys.executable).with_name(name), "--config", self.file, "--check")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.check[:3], stdout=log, stderr=log)

    def write(self, more: str) -> None:
        self.file.write_text(self._lines + more)

    def reload(self, *expected: str) -> str:
        """Send the signal, and return the log since then, when it has all of the expected words."""
        begin = len(self.log.read_bytes())
        self.process.send_signal(signal.SIGHUP)

        def answer() -> str:
            return self.log.read_bytes()[begin:].decode()

        wait_until(lambda: all(word in answer() for word in expected), f"{expected} in the log")
        return answer()

    def handles_the_signal(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        assert self.process.poll() is None, self.log.read_text()
        return caught is not None and bool(int(caught[1], 16) >> (signal.SIGHUP - 1) & 1)


@pytest.fixture(params=DAEMONS)
def daemon(request: pytest.FixtureRequest, tmp_path: Path, server: ApiServer) -> Iterator[Daemon]:
    running = Daemon(request.param, tmp_path, server.kubeconfig)
    try:
        wait_until(running.handles_the_signal, "the daemon")
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        if "node-agent" in str(running.check[0]):
            run("umount", str(tmp_path / "state" / "pods"))  # which the agent has made a mount


def test_reload_changes_the_log_level_and_names_what_needs_a_restart(daemon: Daemon) -> None:
    daemon.write("logLevel: debug\n")
    assert "restart" not in daemon.reload('msg="configuration reloaded" log_level=debug')
    other = "port" if "master" in str(daemon.check[0]) else "nodeIp"
    daemon.file.write_text(re.sub(rf"^{other}: .*", f"{other}: " + ("1" if other == "port" else "127.0.0.2"),
                                  daemon.file.read_text(), flags=re.MULTILINE))  # fmt: skip
    daemon.reload(f'msg="settings that change at a restart only" settings={other}')
    daemon.write("logLevel: warning\n")
    assert "restart" not in daemon.reload("log_level=warning")


def test_wrong_configuration_is_refused_and_the_former_one_stays(daemon: Daemon) -> None:
    daemon.write("logLevel: loud\n")
    shown = daemon.reload("the former one stays in force", "logLevel")
    assert "configuration reloaded" not in shown
    assert subprocess.run(daemon.check, capture_output=True, check=False).returncode == 2, "so systemctl reload fails"
    daemon.file.unlink()
    daemon.reload("the former one stays in force")
    assert daemon.process.poll() is None


@pytest.mark.parametrize("name", DAEMONS)
def test_unit_judges_the_configuration_before_the_signal(name: str) -> None:
    lines = (ROOT / "systemd" / f"{name}.service").read_text().splitlines()
    start = next(line for line in lines if line.startswith("ExecStart="))
    assert [line for line in lines if line.startswith("ExecReload=")] == [
        f"ExecReload={start.removeprefix('ExecStart=')} --check",
        "ExecReload=/bin/kill -HUP $MAINPID",
    ]
