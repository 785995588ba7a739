"""Somebody who has a bare Debian and a clone of this repository, and types what README says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.testbed.documents import NEWCOMER, refusal, scripts, sections
from tests.testbed.hosts.machine import ENVIRONMENT, Machine
from tests.testbed.hosts.site import SOURCE, copy_clone, machine

PACKAGES = "PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/wheels"


@pytest.fixture
def newcomer(place: None) -> Iterator[Machine]:
    """A machine with a clone, in memory, because the Dockers of a lab cannot keep their layers on an overlay."""
    host = machine("newcomer")
    try:
        host.start()
        host.shell(f"mkdir -p /{SOURCE}; mount -t tmpfs tmpfs /{SOURCE}")
        copy_clone(host, host.path(""))
        yield host
    finally:
        host.remove()


def bash(host: Machine, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as root in the clone."""
    inside = ["nsenter", "-t", str(host.leader), "-m", "-u", "-i", "-n", "-p", "-C", "env", "-i", *ENVIRONMENT]
    return subprocess.run(
        [*inside, "bash", "-c", f"cd /{SOURCE}\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_every_step_of_readme_succeeds(newcomer: Machine) -> None:
    """Packages come by the network of this host, which the machine's own does not reach: they are installed before."""
    begin = time.monotonic()
    newcomer.shell(f"cd /{SOURCE}; {PACKAGES} make install 2>&1", online=True)
    sys.stdout.write(f"\n{time.monotonic() - begin:6.1f} s  packages\n")
    steps = list(scripts(*sections(NEWCOMER)))
    assert steps[0][0].name == "make lab"
    assert any(refusal(command) for command, _ in steps)
    for command, script in steps:
        begin = time.monotonic()
        done = bash(newcomer, script)
        sys.stdout.write(f"{time.monotonic() - begin:6.1f} s  {command.name}\n")
        assert bool(done.returncode) == bool(refusal(command)), f"{command.text}\n{done.stdout}{done.stderr}"
        assert refusal(command) in done.stderr + done.stdout, command.text
