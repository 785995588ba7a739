"""The systemd units and example configurations, checked by their readers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from master.config import MasterConfig as MasterSettings
from node_agent.config import Settings as NodeAgentSettings
from reconcile.config_file import merge
from sdn.config import Settings as SdnSettings
from sdn.host.links import docker_options
from tests.unit.sdn.examples import CLUSTER, NODE

DAEMONS = ("master", "sdn", "node-agent")
KINDS = ("path", "service")
ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, type[msgspec.Struct]] = {
    "master": MasterSettings,
    "node-agent": NodeAgentSettings,
    "sdn": SdnSettings,
}


def test_docker_gets_the_options_file_of_the_sdn_daemon() -> None:
    script = (ROOT / "systemd" / "docker-network.sh").read_text()
    name = docker_options(CLUSTER, NODE).partition("=")[0]
    file = next(field.default for field in msgspec.structs.fields(SdnSettings) if field.name == "docker_options_file")
    assert f"${name}" in script
    for text in (script, *((ROOT / "systemd" / f"podlane-docker-network.{kind}").read_text() for kind in KINDS)):
        assert str(file) in text


def unit_keys(name: str) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for line in (ROOT / "systemd" / name).read_text().splitlines():
        key, is_assignment, value = line.partition("=")
        if is_assignment and not line.startswith("#"):
            keys.setdefault(key, []).extend(value.split())
    return keys


@pytest.mark.parametrize("name", DAEMONS)
def test_upgrade_of_another_package_does_not_stop_a_daemon(name: str) -> None:
    """dpkg stops the services of the package; Requires= and BindsTo= would stop the daemon with them, for good."""
    keys = unit_keys(f"podlane-{name}.service")
    assert not keys.keys() & {"Requires", "BindsTo", "Requisite"}
    assert keys["PartOf"] == ["podlane.target"]
    assert "podlane.target" in keys["WantedBy"]


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_has_an_identifier_in_the_journal(name: str) -> None:
    assert unit_keys(f"podlane-{name}.service")["SyslogIdentifier"] == [f"podlane-{name}"]


def test_user_of_the_master_is_created() -> None:
    assert unit_keys("podlane-master.service")["User"] == ["podlane-master"]
    assert "\nu podlane-master " in (ROOT / "systemd" / "podlane.sysusers").read_text()


@pytest.mark.parametrize(
    ("name", "most"), [("master", 1.7), ("sdn", 3.5), ("node-agent", 6.3), ("docker-network", 0.9), ("uplink", 2.2)]
)
def test_exposure_of_a_unit_does_not_grow(name: str, most: float) -> None:
    """As `systemd-analyze security` of systemd 252 rates it, from 0 to 10."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", ROOT / f"systemd/podlane-{name}.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    rating = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert rating is not None, done.stderr
    assert float(rating[1]) <= most


@pytest.mark.parametrize("name", [*DAEMONS, "docker-network", "uplink"])
def test_system_call_filter_returns_an_error_instead_of_a_kill(name: str) -> None:
    keys = unit_keys(f"podlane-{name}.service")
    assert keys["SystemCallFilter"]
    assert keys["SystemCallErrorNumber"] == ["EPERM"]


def test_node_agent_unit_has_the_lowest_oom_score() -> None:
    unit = (ROOT / "systemd" / "podlane-node-agent.service").read_text()
    assert "\nOOMScoreAdjust=-999\n" in unit


@pytest.mark.parametrize("name", SETTINGS)
def test_example_configuration_is_valid(name: str) -> None:
    document = yaml.safe_load((ROOT / "systemd" / f"{name}.yaml").read_text())
    assert merge(SETTINGS[name], document, {})


def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    """With stand-ins for the units of other packages, and for a program of ours, which may not be installed here."""
    libexec = re.compile(r"/opt/podlane/libexec/[a-z-]+")
    copies = [tmp_path / path.name for kind in (*KINDS, "target") for path in (ROOT / "systemd").glob(f"*.{kind}")]
    for copy in copies:
        copy.write_text(libexec.sub("/bin/true", (ROOT / "systemd" / copy.name).read_text()))
    for other in ("openvswitch-switch", "ovs-vswitchd", "docker"):
        (tmp_path / f"{other}.service").write_text("[Service]\nExecStart=/bin/true\n")
    units = sorted(map(str, copies))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "podlane-" in line]
    assert not ours, "\n".join(ours)
    assert done.returncode == 0, done.stderr
