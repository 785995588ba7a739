"""`vagrant up` with libvirt and QEMU, as docs/operations/vagrant.md says: minutes, because processors are emulated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.documents import VAGRANT, scripts, sections
from tests.testbed.vagrant import place as libvirt
from tests.testbed.vagrant.place import Place, running_place

WHY_NOT = libvirt.missing() or ("" if "PODLANE_VAGRANT" in os.environ else "takes minutes: `make vagrant` runs it")
READY = "export KUBECONFIG=$PWD/kubeconfig; kubectl wait --for=condition=Ready node/{} --timeout=300s"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with running_place(tmp_path) as running:
        yield running


def test_nodes_join_at_the_first_start_and_later(place: Place) -> None:
    """The second node comes when the first `vagrant up` is long over; settings of the operator stay."""
    for _, script in scripts(*sections(VAGRANT)):
        place.run(script)
    place.run(READY.format("node-1"))
    place.run(READY.format("node-3"))
    place.run("vagrant ssh node-1 --no-tty --command 'echo \"# mine\" | sudo tee -a /etc/podlane/sdn.yaml'")
    place.run("vagrant provision node-1")
    assert "# mine" in place.run("vagrant ssh node-1 --no-tty --command 'cat /etc/podlane/sdn.yaml'")
    place.run(READY.format("node-1"))
    place.run("vagrant destroy -f")
