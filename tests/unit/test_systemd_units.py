"""The systemd units and example configurations, checked by their readers."""

from __future__ import annotations

import os
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

KINDS = ("path", "service")
ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, type[msgspec.Struct]] = {
    "master": MasterSettings,
    "node-agent": NodeAgentSettings,
    "sdn": SdnSettings,
}


def test_docker_unit_reads_the_options_file_of_the_sdn_daemon() -> None:
    drop_in = (ROOT / "systemd" / "docker.service.d" / "podlane.conf").read_text()
    name = docker_options(CLUSTER, NODE).partition("=")[0]
    file = next(field.default for field in msgspec.structs.fields(SdnSettings) if field.name == "docker_options_file")
    assert f"${name}" in drop_in
    for text in (drop_in, *((ROOT / "systemd" / f"podlane-docker-network.{kind}").read_text() for kind in KINDS)):
        assert str(file) in text


def test_node_agent_unit_has_the_lowest_oom_score() -> None:
    unit = (ROOT / "systemd" / "podlane-node-agent.service").read_text()
    assert "\nOOMScoreAdjust=-999\n" in unit


@pytest.mark.parametrize("name", SETTINGS)
def test_example_configuration_is_valid(name: str) -> None:
    document = yaml.safe_load((ROOT / "systemd" / f"{name}.yaml").read_text())
    assert merge(SETTINGS[name], document, {})


def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    """With stand-ins for the units of other packages, which may not be installed here."""
    for other in ("openvswitch-switch", "docker"):
        (tmp_path / f"{other}.service").write_text("[Service]\nExecStart=/bin/true\n")
    units = sorted(str(path) for kind in KINDS for path in (ROOT / "systemd").glob(f"*.{kind}"))
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
