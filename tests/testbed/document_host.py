"""The host of a master for the commands of documents: a directory, with a real master and stand-ins for systemd."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.wait import wait_until

URL = "https://10.245.2.2:8443"
PASSWORD = "correct horse"
UNIT = "podlane-master"
PATHS = re.compile(r"(?<![\w.])/(?=etc/podlane|etc/prometheus|var/lib/podlane|root/| )")
"""The root of the host, in the paths that documents name."""

SHARE = "/opt/podlane/share/"
SOURCE = Path(__file__).resolve().parents[2]
"""What an installation has in `SHARE` is here in the repository."""

HTPASSWD = f"""#!{sys.executable}
import sys, bcrypt
from pathlib import Path
*options, file, name = sys.argv[1:]
if options == ["-D"]:
    lines = [line for line in Path(file).read_text().splitlines(True) if not line.startswith(name + ":")]
    Path(file).write_text("".join(lines))
else:
    assert options in (["-cB", "-C", "10"], ["-B", "-C", "10"]), options
    lines = "" if "-cB" in options else Path(file).read_text()
    hashed = bcrypt.hashpw(sys.stdin.readline().rstrip().encode(), bcrypt.gensalt(4)).decode()
    Path(file).write_text(lines + name + ":" + hashed + chr(10))
"""
"""What the documents use of Apache's command."""

DAEMON = """#!/bin/sh
[ "$1" = --config ] && shift 2
exec {daemon} --config {settings} "$@"
"""
"""Reads the settings of this host where the document names none."""


class DocumentHost:
    """The host of the master and the machine of a person. `run` executes the text of a document on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc, self.state, self.person = root / "etc/podlane", root / "var/lib/podlane/master", root / "person"
        for folder in (self.etc, root / "etc/prometheus", self.state.parent, self.person, root / "root"):
            folder.mkdir(parents=True)
        commands = root / "bin"
        commands.mkdir()
        settings, daemon = self.etc / "master.yaml", Path(sys.executable).parent / "podlane-master"
        settings.write_text("port: 0\nadvertiseAddress: 127.0.0.1\n")
        for name, text in (
            ("htpasswd", HTPASSWD),
            ("podlane-master", DAEMON.format(daemon=daemon, settings=settings)),
        ):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        admin = self.state / "admin.kubeconfig"
        self.server = ApiServer(
            root, f"--config={settings}", f"--state-dir={self.state}", f"--admin-kubeconfig={admin}"
        )
        self.server.kubeconfig = admin
        self.path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(self, script: str, *, administrator: bool = True) -> str:
        """Run a command or a block of a document. Return what it prints. Raises AssertionError if it fails."""
        match script.split():
            case ["systemctl", verb, *units] if units == [UNIT]:
                return self._control(verb)
        script = PATHS.sub(f"{self.root}/", script).replace(URL, self.server.url).replace(SHARE, f"{SOURCE}/")
        environment = {"PATH": self.path, "HOME": str(self.person)}
        if administrator:
            environment["KUBECONFIG"] = str(self.server.kubeconfig)
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            input=f"{PASSWORD}\n",
            capture_output=True,
            text=True,
            check=False,
            cwd=self.person,
            env=environment,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _control(self, verb: str) -> str:
        assert verb in ("stop", "start", "restart"), verb
        if verb != "start":
            self.server.stop()
        if verb != "stop":
            self.server.start()
            wait_until(self._is_ready, "the master is ready")  # as the unit, whose type is notify
        return ""

    def _is_ready(self) -> bool:
        command = ["kubectl", f"--kubeconfig={self.server.kubeconfig}", "get", "--raw", "/readyz"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
