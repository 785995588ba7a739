"""The start of containers, reasons for failed starts, and the status of terminated containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.testbed.node.pods import SLEEP, NodePods, main, pod, runtime_class
from tests.testbed.node.single_node import NODE
from tests.testbed.wait import wait_until

NEVER = "restartPolicy: Never"


def ended(status: dict[str, Any]) -> tuple[str, int]:
    """Return the reason and the exit code of a terminated container."""
    state = status["state"]["terminated"]
    return state["reason"], state["exitCode"]


def test_container_that_cannot_start_reports_why(alone: NodePods) -> None:
    absent = main().replace('["sh", "-c", "exec tail -f /dev/null"]', "[/nowhere]")
    misplaced = main(more="volumeMounts: [{name: v, mountPath: /proc/misplaced}]")
    alone.apply(
        pod("absent", absent),
        pod("absent-once", absent, NEVER),
        pod("misplaced-once", misplaced, f"{NEVER}\nvolumes: [{{name: v, emptyDir: {{}}}}]"),
        pod("rootless", main(more="volumeMounts: [{name: v, mountPath: /}]"), "volumes: [{name: v, emptyDir: {}}]"),
        pod("unset", main(more="env: [{name: A, valueFrom: {configMapKeyRef: {name: none, key: a}}}]")),
        pod("rude", main(more="lifecycle: {postStart: {exec: {command: [sh, -c, 'echo sorry; exit 3']}}}"), NEVER),
        runtime_class("nowhere"),
        pod("odd", main(), "runtimeClassName: nowhere"),
        pod("behind", main(), f"initContainers:\n{main('sleep 1000', name='first')}"),
    )
    alone.until_phase("Failed", "absent-once", "misplaced-once", "rude")
    assert ended(alone.first_status("absent-once")) == ("ContainerCannotRun", 127)
    state = alone.first_status("absent-once")["state"]["terminated"]
    assert "/nowhere" in state["message"]
    assert state["startedAt"] == state["finishedAt"]
    assert ended(alone.first_status("misplaced-once")) == ("StartError", 128)
    alone.until_events(
        "absent",
        ("Normal", "Pulled", 'Container image "podlane/toolbox" already present on machine and can be accessed'),
        ("Normal", "Created", "Container created"),
        ("Warning", "Failed", "Error: Docker: "),
    )
    assert "/nowhere" in alone.waits("absent", "RunContainerError")
    assert "invalid specification" in alone.waits("rootless", "CreateContainerError")
    assert 'configmap "none" not found' in alone.waits("unset", "CreateContainerConfigError")
    alone.until_events("unset", ("Warning", "Failed", 'Error: configmap "none" not found'))
    alone.until_events(
        "rude",
        ("Normal", "Started", "Container started"),
        ("Warning", "FailedPostStartHook", "PostStartHook failed: sorry"),
        ("Normal", "Killing", "FailedPostStartHook"),
    )
    alone.until_events("odd", ("Warning", "FailedCreatePodSandBox", "Failed to create pod sandbox: Docker: "))
    assert alone.waits("behind", "PodInitializing") == " "
    assert "running" in alone.statuses("behind", "initContainerStatuses")["first"]["state"]


def test_terminated_container_reports_its_reason(alone: NodePods) -> None:
    words = {
        "tail": "head -c 4000 /dev/zero | tr '\\0' x > /dev/termination-log; echo END >> /dev/termination-log",
        "own": "echo mine > /tmp/words",
        "log": "for n in $(seq 100); do echo line $n; done; exit 3",
        "quiet": "echo unheard; exit 0",
    }
    more = {
        "own": "terminationMessagePath: /tmp/words",
        "log": "terminationMessagePolicy: FallbackToLogsOnError",
        "quiet": "terminationMessagePolicy: FallbackToLogsOnError",
    }
    rows = "".join(main(command, more.get(name, ""), name) for name, command in words.items())
    greedy = main("x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done", "resources: {limits: {memory: 8Mi}}")
    alone.apply(pod("speakers", rows, NEVER), pod("greedy", greedy))

    def ends_of_memory() -> bool:
        """Return whether the kernel ends the container for its memory. A busy Docker may miss one of many such ends."""
        status = alone.first_status("greedy")
        ends = [
            status[state]["terminated"] for state in ("state", "lastState") if "terminated" in status.get(state, {})
        ]
        return ("OOMKilled", 137) in [(end["reason"], end["exitCode"]) for end in ends]

    wait_until(ends_of_memory, "it is told that there was not enough memory")
    alone.until_phase("Failed", "speakers")
    actual = alone.statuses("speakers")
    output = {name: status["state"]["terminated"].get("message", "") for name, status in actual.items()}
    assert output["tail"].endswith("xEND\n")
    assert len(output["tail"]) == (12 << 10) // 4, "four containers share twelve KiB"
    assert output["own"] == "mine\n"
    assert output["log"] == "".join(f"line {number}\n" for number in range(21, 101))
    assert output["quiet"] == ""
    assert [ended(actual[name]) for name in ("tail", "log")] == [("Completed", 0), ("Error", 3)]


def test_container_removed_from_docker_is_reported_and_restarted(alone: NodePods) -> None:
    alone.apply(pod("robbed", main()))
    alone.until_ready("robbed")
    identity = alone.first_status("robbed")["containerID"]
    alone.node.docker("rm", "-f", identity.removeprefix("docker://"))
    wait_until(lambda: alone.first_status("robbed").get("restartCount") == 1, "it is started again")
    last = alone.first_status("robbed")["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"], last["containerID"]) == ("ContainerStatusUnknown", 137, identity)


def test_running_pod_reports_its_complete_status(alone: NodePods) -> None:
    first = main("exit 0", "", "first")
    spec = (
        f"securityContext: {{runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000]}}\ninitContainers:\n{first}"
    )
    more = """\
resources: {requests: {cpu: 10m}, limits: {cpu: 50m, memory: 16Mi}}
volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /w, readOnly: true}]
"""
    b, a = main(SLEEP, more, "b"), main(SLEEP, "", "a")
    alone.apply(pod("whole", b + a, f"{spec}volumes: [{{name: v, emptyDir: {{}}}}]"))
    alone.until_ready("whole")
    status = alone.status("whole")
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    assert [
        (condition["type"], condition["status"], condition["observedGeneration"]) for condition in status["conditions"]
    ] == [(kind, "True", 1) for kind in kinds]
    assert all(condition["lastTransitionTime"] for condition in status["conditions"])
    assert (status["phase"], status["qosClass"], status["observedGeneration"]) == ("Running", "Burstable", 1)
    assert status["hostIPs"] == [{"ip": status["hostIP"]}]
    assert status["startTime"]
    assert [container["name"] for container in status["containerStatuses"]] == ["b", "a"], "in the order of the spec"
    container = status["containerStatuses"][0]
    assert container["resources"] == {
        "requests": {"cpu": "10m", "memory": "16Mi"},
        "limits": {"cpu": "50m", "memory": "16Mi"},
    }
    assert container["allocatedResources"] == {"cpu": "10m", "memory": "16Mi"}
    assert [mount for mount in container["volumeMounts"] if mount["name"] == "v"] == [
        {"name": "v", "mountPath": "/v"},
        {"name": "v", "mountPath": "/w", "readOnly": True, "recursiveReadOnly": "Disabled"},
    ]
    user = container["user"]["linux"]
    assert (user["uid"], user["gid"]) == (1000, 3000)
    assert {3000, 4000} >= set(user["supplementalGroups"]) >= {4000}
    assert (container["ready"], container["started"], container["restartCount"], container["lastState"]) == (
        True,
        True,
        0,
        {},
    )
    assert container["image"] == "podlane/toolbox"
    assert container["imageID"].startswith("docker://sha256:")
    assert container["containerID"].startswith("docker://")
    [init] = status["initContainerStatuses"]
    assert (init["ready"], init["state"]["terminated"]["reason"]) == (True, "Completed")


def test_pod_phases_and_conditions_follow_its_lifecycle(alone: NodePods) -> None:
    steps = f"initContainers:\n{main('sleep 1000', name='one')}{main('exit 0', name='two')}"
    alone.apply(
        pod("begins", main(), steps),
        pod("good", main("exit 0"), NEVER),
        pod("bad", main("exit 0") + main("exit 5", name="side"), NEVER),
        pod("again", main("exit 1") + main(name="side"), "restartPolicy: OnFailure"),
        pod("doomed", main(), f"{NEVER}\ninitContainers:\n{main('exit 4', name='one')}"),
    )

    def conditions_of(name: str) -> dict[str, tuple[str, str, str]]:
        rows = alone.status(name).get("conditions", [])
        return {
            condition["type"]: (condition["status"], condition.get("reason", ""), condition.get("message", ""))
            for condition in rows
        }

    alone.until_phase("Succeeded", "good")
    alone.until_phase("Failed", "bad", "doomed")
    assert conditions_of("good")["Initialized"] == ("True", "PodCompleted", "")
    wait_until(lambda: conditions_of("good")["PodReadyToStartContainers"][0] == "False", "its sandbox is gone")
    for kind in ("Ready", "ContainersReady"):
        assert conditions_of("good")[kind] == ("False", "PodCompleted", "")
        assert conditions_of("bad")[kind] == ("False", "PodFailed", "")
    wait_until(
        lambda: "running" in alone.statuses("begins", "initContainerStatuses").get("one", {"state": {}})["state"],
        "init",
    )
    assert alone.status("begins")["phase"] == "Pending"
    assert conditions_of("begins")["Initialized"] == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [one two]",
    )
    for kind in ("Ready", "ContainersReady"):
        assert conditions_of("begins")[kind] == (
            "False",
            "ContainersNotReady",
            "containers with unready status: [main]",
        )
    words = rf"back-off \d+0s restarting failed container=main pod=again_default\({alone.uid('again')}\)"
    assert re.fullmatch(words, alone.waits("again", "CrashLoopBackOff", "main"))
    alone.until_events(
        "again", ("Warning", "BackOff", "Back-off restarting failed container main in pod again_default(")
    )
    assert alone.status("again")["phase"] == "Running"
    assert conditions_of("again")["Ready"] == ("False", "ContainersNotReady", "containers with unready status: [main]")
    assert conditions_of("doomed")["Initialized"][:2] == ("False", "ContainersNotInitialized")
    assert not alone.node.docker("ps", "-aq", "--filter", f"name=k8s_main_doomed_default_{alone.uid('doomed')}")
    assert alone.node.kubectl("get", "pod", "good", "-o", "jsonpath={.spec.nodeName}") == NODE


def test_post_start_hook_delays_later_containers_and_image_change_replaces_one(alone: NodePods, tmp_path: Path) -> None:
    hook = "lifecycle: {postStart: {exec: {command: [sh, -c, 'until test -e /out/go; do sleep 0.05; done']}}}\n"
    mount, volume = "volumeMounts: [{name: v, mountPath: /v}]", "volumes: [{name: v, emptyDir: {}}]"
    first = main(more=f"{hook}volumeMounts: [{{name: out, mountPath: /out}}]", name="first")
    alone.apply(pod("hooked", first + main(name="next"), f"volumes: [{{name: out, hostPath: {{path: {tmp_path}}}}}]"))
    alone.apply(pod("changes", main(more=mount), volume))
    alone.until_events("hooked", ("Normal", "Started", "Container started"))
    alone.until_ready("changes")
    assert alone.waits("hooked", "ContainerCreating", "first") == " ", "it has not begun before its hook is done"
    assert not alone.statuses("hooked")["next"]["containerID"]
    (tmp_path / "go").touch()
    alone.until_ready("hooked")

    before = alone.first_status("changes")
    alone.inside("changes", "touch /v/kept")
    alone.node.docker("tag", "podlane/toolbox", "podlane/toolbox:2")
    alone.node.kubectl("set", "image", "pod/changes", "main=podlane/toolbox:2")
    wait_until(lambda: alone.first_status("changes").get("restartCount") == 1, "it is another one")
    alone.until_events("changes", ("Normal", "Killing", "Container main definition changed, will be restarted"))
    alone.until_ready("changes")
    status = alone.first_status("changes")
    assert (status["image"], status["lastState"]["terminated"]["containerID"]) == (
        "podlane/toolbox:2",
        before["containerID"],
    )
    assert alone.inside("changes", "ls /v").strip() == "kept"
