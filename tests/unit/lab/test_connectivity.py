"""The table of who reaches whom, and the pods that are in it."""

from __future__ import annotations

import re
import subprocess
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from msgspec.structs import replace

from api.core.pod import ContainerStatus, Pod, PodSpec, PodStatus
from api.meta.types import Condition, ObjectMeta
from lab.connectivity import Matrix, Probe, ProbedService, measure, probe_script
from lab.demo import members
from lab.topology import Lab, Site

LAB = Lab(Site("podx", IPv4Network("10.245.9.0/24")), Path("/nowhere"), Path("/bin"), 1, "ovs-multitenant")
OUTSIDE = "10.245.9.1"


def probe(project: str, vnid: int) -> Probe:
    """Return a pod of a project."""
    return Probe(project, vnid, f"{project}-1", f"10.128.0.{vnid}", "c", "/sock")


def test_without_pods_there_is_a_sentence_and_no_table() -> None:
    matrix = measure((), (ProbedService("red", 10, "demo"),), OUTSIDE)
    assert matrix.text() == "no demo pods run; `make lab` starts them"
    assert matrix.unexpected() == ()


def test_pairs_are_marked_by_what_was_expected() -> None:
    red, blue = probe("red", 10), probe("blue", 11)
    reached = {(each.address, target) for each in (red, blue) for target in (each.address, OUTSIDE)}
    matrix = Matrix((red, blue), (), OUTSIDE, frozenset(reached | {(red.address, blue.address)}))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix.text()).splitlines()
    assert [line.split() for line in plain[1:]] == [["red/red-1", "+", "!+", "+"], ["blue/blue-1", ".", "+", "+"]]
    assert matrix.unexpected() == ("red/red-1 reaches blue/blue-1",)


PING = """\
#!/bin/sh
echo "$*" >> {folder}/sent
for target; do :; done
[ "$target" = 10.0.0.1 ] || [ "$target" = 10.0.0.3 ]
"""


def test_targets_that_should_be_silent_come_last_and_take_less_time(tmp_path: Path) -> None:
    """Of each kind one replies, and one does not."""
    ping = tmp_path / "ping"
    ping.write_text(PING.format(folder=tmp_path))
    ping.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", probe_script(["10.0.0.1", "10.0.0.2"], ["10.0.0.3", "10.0.0.4"])],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == {"10.0.0.1", "10.0.0.3"}
    sent = (tmp_path / "sent").read_text().splitlines()
    assert sorted(sent[:2]) == ["-c 3 -W 1 -A 10.0.0.1", "-c 3 -W 1 -A 10.0.0.2"]
    assert sorted(sent[2:]) == ["-c 3 -W 1 -i 0.2 10.0.0.3", "-c 3 -W 1 -i 0.2 10.0.0.4"]


def pod(**status: object) -> Pod:
    """Return a running pod of the demo, but for changes of its status."""
    values = {
        "pod_ip": "10.128.0.5",
        "conditions": (Condition(type="Ready", status="True"),),
        "container_statuses": (ContainerStatus(name="toolbox", container_id="docker://abc"),),
        **status,
    }
    meta = ObjectMeta(name="red-1", namespace="red")
    return Pod(metadata=meta, spec=PodSpec(containers=(), node_name="node-1"), status=PodStatus(**values))  # type: ignore[arg-type]


def test_pods_that_run_are_asked() -> None:
    (found,) = members((pod(),), LAB, {"red": 10})
    assert (found.project, found.vnid, found.container) == ("red", 10, "abc")


@pytest.mark.parametrize(
    "absent",
    [
        pod(pod_ip=""),
        pod(container_statuses=()),
        pod(conditions=(Condition(type="Ready", status="False"),)),
        replace(pod(), metadata=replace(pod().metadata, deletion_timestamp="2026-01-01T00:00:00Z")),
    ],
)
def test_pods_that_start_or_end_are_not_asked(absent: Pod) -> None:
    assert members((absent,), LAB, {"red": 10}) == []
