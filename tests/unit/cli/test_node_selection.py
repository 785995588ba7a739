"""Which pods of a node are evicted."""

from __future__ import annotations

import pytest

from api.core.pod import Pod, PodSpec, PodStatus
from api.core.volumes import EmptyDirVolumeSource, Volume
from api.meta.types import ObjectMeta, OwnerReference
from cli.node.selection import DrainOptions, names, select

ALL = DrainOptions(force=True, delete_emptydir_data=True, ignore_daemonsets=True)


def pod(name: str, owner: str = "", *, data: bool = False, phase: str = "Running", mirror: bool = False) -> Pod:
    owners = (OwnerReference(api_version="v1", kind=owner, name="o", uid="1", controller=True),) if owner else ()
    annotations = {"kubernetes.io/config.mirror": "x"} if mirror else {}
    volumes = (Volume(name="d", empty_dir=EmptyDirVolumeSource()),) if data else ()
    metadata = ObjectMeta(name=name, namespace="red", owner_references=owners, annotations=annotations)
    return Pod(metadata=metadata, spec=PodSpec(volumes=volumes), status=PodStatus(phase=phase))


PODS = (
    pod("replica", "ReplicaSet"),
    pod("replica-data", "ReplicaSet", data=True),
    pod("bare"),
    pod("daemon", "DaemonSet", data=True),
    pod("mirror", mirror=True, data=True),
    pod("done", phase="Succeeded", data=True),
    pod("failed-daemon", "DaemonSet", phase="Failed"),
)


def test_pods_of_daemon_sets_and_mirror_pods_stay() -> None:
    selection = select(PODS, ALL)
    assert selection.problems == ()
    assert [each.metadata.name for each in selection.staying] == ["mirror", "daemon"]
    assert [each.metadata.name for each in selection.evicted] == [
        "replica",
        "replica-data",
        "bare",
        "done",
        "failed-daemon",
    ]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("force", "red/bare have no controller that creates them again; --force is accepted"),
        ("delete_emptydir_data", "red/replica-data have data in emptyDir volumes; --delete-emptydir-data is accepted"),
        ("ignore_daemonsets", "red/daemon are of DaemonSets, which start them again; --ignore-daemonsets is accepted"),
    ],
)
def test_each_kind_of_loss_needs_its_option(option: str, problem: str) -> None:
    options = {name: name != option for name in ("force", "delete_emptydir_data", "ignore_daemonsets")}
    assert select(PODS, DrainOptions(**options)).problems == (problem,)


def test_at_most_ten_names_are_shown() -> None:
    assert names([pod(f"p{number}") for number in range(12)]).endswith("red/p9 and 2 more")
