"""The steps of docs/operations/install.md from an installed master to a first login, as they are written there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import documents
from tests.testbed.document_host import DocumentHost

RESTART = "systemctl restart podlane-master"


def blocks() -> list[str]:
    """Return the blocks of the section, in their order."""
    ((document, section),) = documents.sections(documents.FIRST_LOGIN)
    return [text for heading, _, text in documents.blocks(document) if heading == section]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[DocumentHost]:
    installed = DocumentHost(tmp_path)
    installed.server.start()
    yield installed
    installed.server.stop(signal.SIGKILL)


def test_the_steps_lead_to_a_login_and_its_end(host: DocumentHost) -> None:
    make_file, settings, check, project, login, remove = blocks()
    host.run(make_file)
    with (host.etc / "master.yaml").open("a") as file:
        file.write(settings.replace("/etc/podlane", str(host.etc)))
    assert RESTART in check
    assert "name: staff" in host.run(check.replace(RESTART, ""))
    host.run(RESTART)
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
