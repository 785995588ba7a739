"""What the Vagrantfile and its provisioners do and do not, as far as a look at them tells; tests/vm runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VAGRANTFILE = (ROOT / "Vagrantfile").read_text()
PROVISIONERS = {name: (ROOT / "vagrant" / name).read_text() for name in ("master.sh", "node.sh")}


@pytest.mark.parametrize("name", PROVISIONERS)
def test_provisioner_is_a_script_that_begins_with_an_update(name: str) -> None:
    text = PROVISIONERS[name]
    subprocess.run(["bash", "-n", str(ROOT / "vagrant" / name)], check=True)
    assert text.index("apt-get -qq update") < text.index("apt-get -qq install")


@pytest.mark.parametrize("name", PROVISIONERS)
def test_provisioner_overwrites_no_settings(name: str) -> None:
    """A file below /etc is written only where it is missing."""
    lines = PROVISIONERS[name].splitlines()
    writes = [number for number, line in enumerate(lines) if ">/etc/" in line]
    assert all("if [[ ! -e /etc/" in lines[number - 1] for number in writes)
    assert "daemon.json" not in PROVISIONERS[name]
    assert bool(writes) == (name == "master.sh"), "the control: the master has settings"


def test_no_secret_is_kept_or_served() -> None:
    for text in (VAGRANTFILE, *PROVISIONERS.values()):
        assert not any(word in text for word in ("http.server", "SecureRandom", "openssl", "http://"))
    assert "podlane node token" in VAGRANTFILE
