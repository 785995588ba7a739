"""The steps of docs/operations/install.md from an installed master to a first login, as they are written there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.apiserver.process import ApiServer

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "operations" / "install.md"
RESTART = "systemctl restart podlane-master"
PASSWORD = "correct horse"

HTPASSWD = f"""#!{sys.executable}
import sys, bcrypt
from pathlib import Path
option, *others, file, name = sys.argv[1:]
if option == "-D":
    lines = [line for line in Path(file).read_text().splitlines(True) if not line.startswith(name + ":")]
    Path(file).write_text("".join(lines))
else:
    assert (option, others) == ("-cB", ["-C", "10"])
    hashed = bcrypt.hashpw(sys.stdin.readline().rstrip().encode(), bcrypt.gensalt(4)).decode()
    Path(file).write_text(name + ":" + hashed + chr(10))
"""
"""What the document uses of Apache's command."""


def blocks() -> list[str]:
    """Return the blocks of the section, in their order."""
    section = DOCUMENT.read_text().split("## The first login\n")[1].split("\n## ")[0]
    return [textwrap.dedent(block.partition("\n")[2]) for block in section.split("```")[1::2]]


class Host:
    """The host of the master and the machine of a person, which is a directory."""

    def __init__(self, root: Path) -> None:
        self.etc, self.state, self.person = root / "etc", root / "state", root / "person"
        for folder in (self.etc, self.person):
            folder.mkdir()
        commands = root / "bin"
        commands.mkdir()
        (commands / "htpasswd").write_text(HTPASSWD)
        (commands / "htpasswd").chmod(0o755)
        (self.etc / "master.yaml").write_text("port: 0\n")
        self.server = ApiServer(root, "--config", str(self.etc / "master.yaml"))
        self.path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(self, script: str, *, administrator: bool = True) -> str:
        """Run a block of the document. Return what it prints."""
        for written, actual in (
            ("/etc/podlane", str(self.etc)),
            ("/var/lib/podlane/master/admin.kubeconfig", str(self.server.kubeconfig)),
            ("/var/lib/podlane/master", str(self.state)),
            ("https://10.245.2.2:8443", self.server.url),
        ):
            script = script.replace(written, actual)
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


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    installed = Host(tmp_path)
    installed.server.start()
    yield installed
    installed.server.stop(signal.SIGKILL)


def test_the_steps_lead_to_a_login_and_its_end(host: Host) -> None:
    make_file, settings, check, project, login, remove = blocks()
    host.run(make_file)
    with (host.etc / "master.yaml").open("a") as file:
        file.write(settings.replace("/etc/podlane", str(host.etc)))
    assert RESTART in check
    assert "name: staff" in host.run(check.replace(RESTART, ""))
    host.server.stop()
    host.server.start()
    host.run(project)
    (host.person / "ca.crt").write_bytes((host.state / "pki" / "ca.crt").read_bytes())
    assert host.run(login, administrator=False).splitlines()[-1] == "yes"
    projects = "kubectl get projects -o name"
    assert host.run(projects, administrator=False) == "project.project.openshift.io/red\n"
    assert host.run("kubectl get users,identities -o name").split() == [
        "user.user.openshift.io/alice",
        "identity.user.openshift.io/staff:alice",
    ]
    host.run(remove)
    with pytest.raises(AssertionError, match=r"Unauthorized|logged in"):
        host.run(projects, administrator=False)
