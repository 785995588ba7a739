"""The commands of docs/operations that need a master only, as they are written there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.document_host import DocumentHost
from tests.testbed.documents import MASTER, scripts, sections
from tests.testbed.wait import wait_until

BACKUP = "docs/operations/backup.md"
PROJECTS = "kubectl get namespaces -o name"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[DocumentHost]:
    installed = DocumentHost(tmp_path)
    installed.server.start()
    yield installed
    installed.server.stop(signal.SIGKILL)


def run(host: DocumentHost, document: str, heading: str) -> dict[str, str]:
    """Run the commands of a section. Return what each prints."""
    return {command.name: host.run(script) for command, script in scripts((document, heading))}


def test_commands_succeed(host: DocumentHost) -> None:
    host.run("kubectl create namespace red")
    audit_log = host.root / "var/lib/podlane/master/audit/audit.log"
    wait_until(
        lambda: audit_log.exists() and "/namespaces?" in audit_log.read_text(), "the audit event of the namespace"
    )
    printed: dict[str, str] = {}
    for document, heading in sections(MASTER):
        if document != BACKUP:
            printed |= run(host, document, heading)
    assert "plugin: ovs-multitenant" in printed["podlane-master --check"]
    assert printed["kubectl get --raw /readyz"] == "ok"
    (events,) = (lines for name, lines in printed.items() if name.startswith("jq "))
    assert "\tsystem:admin\tcreate\t/api/v1/namespaces?" in events


def test_restored_master_is_as_it_was_at_the_time_of_the_backup(host: DocumentHost) -> None:
    host.run("kubectl create namespace before")
    ((check, _),) = [
        (output, name)
        for name, output in run(host, BACKUP, "Back up the master").items()
        if name.startswith("sqlite3 ")
    ]
    assert check.splitlines()[0] == "ok"
    host.run("kubectl create namespace after")
    host.run("kubectl delete namespace before")
    assert {"namespace/after"} == {"namespace/before", "namespace/after"} & set(host.run(PROJECTS).split())
    restored = run(host, BACKUP, "Restore the master")
    assert restored["kubectl get --raw /readyz"] == "ok"
    assert {"namespace/before"} == {"namespace/before", "namespace/after"} & set(host.run(PROJECTS).split())
    assert not list(host.root.glob("root/check"))
    host.run("kubectl create namespace after")
    assert (host.root / "root/podlane-master.tgz").stat().st_mode & 0o077 == 0
