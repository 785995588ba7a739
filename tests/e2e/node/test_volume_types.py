"""Volume types on a node without a network: paths and modes on the host, and rejected volumes."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from tests.testbed.node.pods import NodePods, main, pod
from tests.testbed.wait import wait_until

OBJECTS = """\
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default}
data: {color: blue}
binaryData: {blob: AAEC}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fixed, namespace: default}
immutable: true
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: default}
stringData: {word: hidden}
"""
VOLUMES = """\
volumes:
- name: settings
  configMap: {name: settings, items: [{key: color, path: deep/color, mode: 256}, {key: blob, path: b}]}
- {name: fixed, configMap: {name: fixed}}
- {name: password, secret: {secretName: password}}
- {name: all, projected: {sources: [{secret: {name: password}}]}}
- {name: about, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
- {name: scratch, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
"""
MOUNTS = """\
resources: {limits: {memory: 16Mi}}
volumeMounts:
- {name: settings, mountPath: /settings}
- {name: fixed, mountPath: /fixed}
- {name: password, mountPath: /password}
- {name: all, mountPath: /all}
- {name: about, mountPath: /about}
- {name: scratch, mountPath: /scratch}
- {name: memory, mountPath: /memory}
"""


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def kind_of_filesystem(path: Path) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()


def mount_options(below: Path) -> list[str]:
    rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [fields[3] for fields in rows if fields[1].startswith(f"{below}/")]


def written(volume: Path) -> str:
    """Return the directory of a volume's current files."""
    return (volume / "..data").readlink().name


def test_volume_files_have_kubelets_paths_and_modes(alone: NodePods) -> None:
    alone.apply(OBJECTS, pod("keeper", main(more=MOUNTS), VOLUMES))
    alone.until_ready("keeper")
    home = alone.node.state / "pods" / alone.uid("keeper")
    volumes = home / "volumes"
    assert {entry.name for entry in volumes.iterdir()} == {
        f"kubernetes.io~{kind}" for kind in ("configmap", "secret", "projected", "downward-api", "empty-dir")
    }
    assert [mode(path) for path in (home, home / "etc-hosts")] == ["750", "644"]
    assert mode(home / "containers" / "main" / "00000000") == "666"
    for path, filesystem in (("secret/password", "tmpfs"), ("projected/all", "tmpfs"), ("empty-dir/memory", "tmpfs")):
        assert kind_of_filesystem(volumes / f"kubernetes.io~{path}") == filesystem, path
    for path in ("configmap/settings", "empty-dir/scratch"):
        assert kind_of_filesystem(volumes / f"kubernetes.io~{path}") == kind_of_filesystem(home), path
    assert mode(volumes / "kubernetes.io~empty-dir" / "scratch") == "777"
    swaps = not [words for words in mount_options(volumes) if "noswap" in words]
    assert swaps == (tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 4))
    size = os.statvfs(volumes / "kubernetes.io~empty-dir" / "memory")
    assert size.f_blocks * size.f_frsize == 16 << 20, "no more than the pod may have"

    settings = volumes / "kubernetes.io~configmap" / "settings"
    first = written(settings)
    assert re.fullmatch(r"\.\.\d{4}(_\d\d){5}\.\d+", first)
    assert mode(settings / first) == "755"
    assert sorted(entry.name for entry in settings.iterdir()) == sorted([first, "..data", "b", "deep"])
    assert (settings / "deep").readlink() == Path("..data/deep")
    assert [mode(settings / name) for name in ("deep/color", "b")] == ["400", "644"]
    assert (settings / "b").read_bytes() == b"\0\1\2"

    alone.inside("keeper", "echo kept > /scratch/file; echo kept > /memory/file")
    alone.node.docker("kill", alone.first_status("keeper")["containerID"].removeprefix("docker://"))
    wait_until(lambda: alone.first_status("keeper").get("restartCount") == 1, "it is started again")
    alone.until_ready("keeper")
    assert alone.inside("keeper", "cat /scratch/file /memory/file").split() == ["kept", "kept"]
    assert mode(home / "containers" / "main" / "00000001") == "666"
    assert written(settings) == first, "what has not changed is not written again"

    alone.node.kubectl("delete", "configmap", "fixed")
    alone.apply(OBJECTS.replace("blue", "green"))
    wait_until(lambda: alone.inside("keeper", "cat /settings/deep/color") == "green", "the change is seen")
    assert alone.inside("keeper", "cat /fixed/color") == "blue", "what cannot change is not watched"
    assert written(settings) != first
    assert not (settings / first).exists()
    alone.node.kubectl("delete", "configmap", "settings", "fixed")
    alone.node.kubectl("delete", "secret", "password")


TYPES = ("Directory", "File", "Socket", "CharDevice", "BlockDevice", "DirectoryOrCreate", "FileOrCreate", "")


def test_host_path_volume_waits_until_the_path_has_its_type(alone: NodePods, tmp_path: Path) -> None:
    paths = {kind: tmp_path / (kind or "none") for kind in TYPES}
    paths["Directory"].mkdir()
    paths["File"].write_text("there")
    paths[""].mkdir()
    paths["CharDevice"] = Path("/dev/null")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(paths["Socket"]))
        os.mknod(paths["BlockDevice"], stat.S_IFBLK | 0o600, os.makedev(7, 0))
        volumes = [
            f"{{name: v{n}, hostPath: {{path: {path}, type: '{kind}'}}}}"
            for n, (kind, path) in enumerate(paths.items())
        ]
        mounts = [f"{{name: v{number}, mountPath: /v{number}}}" for number in range(len(paths))]
        wrong = f"volumes: [{{name: v, hostPath: {{path: {tmp_path}/later, type: File}}}}]"
        alone.apply(
            pod("types", main(more=f"volumeMounts: [{', '.join(mounts)}]"), f"volumes: [{', '.join(volumes)}]"),
            pod("wrong", main(more="volumeMounts: [{name: v, mountPath: /v}]"), wrong),
        )
        alone.until_ready("types")
    seen = alone.inside("types", "for n in 0 1 2 3 4 5 6 7; do stat -c %F /v$n; done").splitlines()
    assert seen == [
        "directory", "regular file", "socket", "character special file", "block special file", "directory",
        "regular empty file", "directory",
    ]  # fmt: skip
    assert [mode(paths[kind]) for kind in ("DirectoryOrCreate", "FileOrCreate")] == ["755", "644"]
    words = 'MountVolume.SetUp failed for volume "v" : hostPath type check failed'
    alone.until_events("wrong", ("Warning", "FailedMount", words))
    assert words in alone.waits("wrong", "ContainerCreating")
    assert alone.status("wrong")["phase"] == "Pending"
    (tmp_path / "later").write_text("now")
    alone.until_ready("wrong")
    assert alone.inside("wrong", "cat /v") == "now"


STORAGE = """\
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: alone-disk}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: PATH, type: DirectoryOrCreate}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


def test_claim_volume_waits_for_its_claim_and_protects_it_while_in_use(alone: NodePods, tmp_path: Path) -> None:
    claim = "volumes: [{name: v, persistentVolumeClaim: {claimName: data, readOnly: true}}]"
    alone.apply(pod("reader", main(more="volumeMounts: [{name: v, mountPath: /v}]"), claim))
    failed = 'MountVolume.SetUp failed for volume "v" : persistentvolumeclaim "data"'
    alone.until_events("reader", ("Warning", "FailedMount", f"{failed} not found"))
    text = STORAGE.replace("PATH", str(tmp_path / "disk"))
    desired = text.rpartition("---\n")[2]
    alone.apply(desired)
    with pytest.raises(AssertionError, match=r"spec\.accessModes\[0\].*ReadWriteOnce, ReadOnlyMany, ReadWriteMany"):
        alone.apply(desired.replace("[ReadWriteOnce], resources", "[ReadWriteOncePod], resources"))
    alone.until_events("reader", ("Warning", "FailedMount", f"{failed} is not bound to a volume: it is Pending"))
    alone.apply(text)
    alone.until_ready("reader")
    assert "Read-only" in alone.inside("reader", "touch /v/x 2>&1 || true")
    alone.node.kubectl("delete", "pvc/data", "pv/alone-disk", "--wait=false")
    table = alone.node.kubectl("get", "pvc", "data", "--no-headers")
    assert table.split()[1:3] == ["Terminating", "alone-disk"], "it is in use"
    assert alone.node.kubectl("get", "pv", "alone-disk", "-o", "jsonpath={.status.phase}") == "Bound"
    alone.delete("reader")
    left = ("get", "pvc/data", "pv/alone-disk", "--ignore-not-found", "-o", "name")
    wait_until(lambda: not alone.node.kubectl(*left), "both have gone")


def refusal(alone: NodePods, volume: str, mount: str = "mountPath: /v") -> str:
    text = pod("refused", main(more=f"volumeMounts: [{{name: v, {mount}}}]"), f"volumes: [{{name: v, {volume}}}]")
    try:
        alone.apply(text)
    except AssertionError as error:
        return str(error)
    return "nothing"


def test_sub_paths_that_escape_their_volume_are_rejected(alone: NodePods) -> None:
    for path in ("../up", "/abs", "..hidden", "a/../../b"):
        reported = refusal(alone, f"configMap: {{name: c, items: [{{key: k, path: '{path}'}}]}}")
        assert "spec.volumes[0].configMap.items[0].path" in reported, path
    for path in ("../up", "/abs"):
        assert "volumeMounts[0].subPath" in refusal(alone, "emptyDir: {}", f"mountPath: /v, subPath: '{path}'"), path
    assert "hostPath.path" in refusal(alone, "hostPath: {path: /a/../b}")
    for volume in ("ephemeral: {volumeClaimTemplate: {}}", "csi: {driver: d}"):
        assert f"spec.volumes[0].{volume.partition(':')[0]}" in refusal(alone, volume)
    assert not alone.exists("refused")
