"""The lifetime of a pod against a Docker in memory, with the agent killed after every call."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from api.core.config import Secret
from api.core.pod import ContainerResizePolicy, Pod
from api.meta.types import ObjectMeta
from api.validation.static_pods import from_api_server
from node_agent.host import etc_hosts_path
from node_agent.images.credentials import Credential
from node_agent.pods.resize import PendingResize
from node_agent.pods.worker import gather_both
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import NotReady, Refused
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.examples import make_pod
from tests.unit.node_agent.fake_host import POLLS, FakeHost, fake_host, kill_anywhere

PAIR = make_pod(
    "[{name: main, image: toolbox, imagePullPolicy: IfNotPresent}, {name: side, image: toolbox}]",
    "  volumes: [{name: v, emptyDir: {}}]",
)
SOON = make_pod(spec="  terminationGracePeriodSeconds: 0")
ONCE = make_pod('[{name: main, image: toolbox, command: ["exit 0"]}]', "  restartPolicy: Never")
STEPS = make_pod(
    spec="""\
  initContainers:
  - {name: first, image: toolbox, command: ["exit 0"]}
  - {name: side, image: toolbox, restartPolicy: Always}
  - {name: second, image: toolbox, command: ["exit 0"]}
"""
)
STEPS_ONCE = make_pod(
    '[{name: main, image: toolbox, command: ["exit 0"]}]',
    """\
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  initContainers: [{name: side, image: toolbox, restartPolicy: Always}]
""",
)
WITHOUT_PULL = make_pod("[{name: main, image: toolbox, imagePullPolicy: IfNotPresent}]")
NEWER = replace(SOON, spec=replace(SOON.spec, containers=(replace(SOON.spec.containers[0], image="toolbox:2"),)))


async def started(host: FakeHost) -> None:
    await host.live(
        PAIR, lambda: host.status.phase == "Running" and all(r.ready for r in host.status.container_statuses)
    )


async def crashed(host: FakeHost) -> None:
    """A container exits once and is started again at once."""
    await host.once("runs", lambda: started(host))
    await host.once("ended", lambda: host.end("main", 1))
    await host.live(PAIR, lambda: host.restarts() == [1, 0])


async def sandbox_lost(host: FakeHost) -> None:
    """The sandbox is killed by another program; all containers start in a new one."""
    await host.once("runs", lambda: started(host))
    await host.once("lost", lambda: host.end("POD", 137))
    await host.live(PAIR, lambda: host.restarts() == [1, 1])


async def done(host: FakeHost) -> None:
    """A container does its work and exits."""
    await host.live(ONCE, lambda: host.status.phase == "Succeeded")


async def initialized(host: FakeHost) -> None:
    """Init containers exit one after the other; the sidecar keeps running."""
    await host.live(STEPS, lambda: host.status.phase == "Running")


async def reinitialized(host: FakeHost) -> None:
    """The sandbox is killed by another program; the init containers run again."""
    await host.once("runs", lambda: initialized(host))
    await host.once("lost", lambda: host.end("POD", 137))
    await host.live(STEPS, lambda: host.restarts() == [1, 1])


async def done_next_to_a_sidecar(host: FakeHost) -> None:
    """The work is done, and the sidecar is stopped."""
    await host.live(STEPS_ONCE, lambda: host.status.phase == "Succeeded")


async def changed_image(host: FakeHost) -> None:
    """The pod gets another image while it runs."""
    await host.once("runs", lambda: host.live(SOON, lambda: host.status.phase == "Running"))
    await host.live(NEWER, lambda: host.restarts() == [1])


async def deleted(host: FakeHost) -> None:
    """The pod is deleted."""
    await host.once("runs", lambda: host.live(SOON, lambda: host.status.phase == "Running"))
    if not host.terminated:
        await host.live(SOON, lambda: host.terminated, leave=True)


SCENARIOS = [
    started,
    crashed,
    sandbox_lost,
    done,
    initialized,
    reinitialized,
    done_next_to_a_sidecar,
    changed_image,
    deleted,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_agent_killed_after_any_call_reaches_the_same_state(
    scenario: Callable[[FakeHost], Awaitable[None]], tmp_path: Path
) -> None:
    await kill_anywhere(scenario, tmp_path)


async def test_image_removed_while_waiting_for_the_network_is_reported_missing(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "host") as host:
        host.switch.unavailable = True

        def is_waiting_for_its_image() -> bool:
            if host.status.reason == "FailedCreatePodSandBox":
                host.docker.images.discard("toolbox")
                host.switch.unavailable = False
            states = [status.state.waiting for status in host.status.container_statuses]
            return any(state is not None and "Image" in state.reason for state in states)

        await host.live(SOON, is_waiting_for_its_image)
        assert host.docker.running("main") is None


async def test_pod_waits_for_an_unavailable_network_with_a_reason(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.switch.unavailable = True
        await host.live(SOON, lambda: bool(host.status.reason))
        assert (host.status.phase, host.status.reason) == ("Pending", "FailedCreatePodSandBox")
        assert host.status.message == "network: sdn: no subnet yet"
        host.switch.unavailable = False
        await host.live(SOON, lambda: host.status.phase == "Running")
        assert (host.status.reason, host.status.message) == ("", "")


def directory_for(file: str) -> Path:
    """Create a directory in place of a file."""
    path = Path(file)
    path.mkdir(parents=True)
    return path


class SandboxStartsLate(FakeDocker):
    """A Docker that starts a sandbox only when another container was created."""

    def __init__(self, *images: str) -> None:
        super().__init__(*images)
        self.created = asyncio.Event()

    async def create(self, spec: ContainerConfig) -> str:
        container = await super().create(spec)
        if spec.network != "none":
            self.created.set()
        return container

    async def start(self, container: str) -> None:
        if self.held[container].seen.is_sandbox:
            await self.created.wait()
        await super().start(container)


async def test_container_is_created_while_its_sandbox_starts(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.docker = SandboxStartsLate("pause", "toolbox")
        await host.live(WITHOUT_PULL, lambda: host.status.phase == "Running")


@pytest.mark.parametrize(
    "fields",
    [
        "imagePullPolicy: Always",
        "imagePullPolicy: IfNotPresent, env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]",
    ],
)
async def test_container_that_needs_a_pull_or_the_address_is_created_after_the_attach(
    tmp_path: Path, fields: str
) -> None:
    pod = make_pod(f"[{{name: main, image: toolbox, {fields}}}]")
    async with fake_host(tmp_path / "w") as host:
        host.switch.unavailable = True
        await host.live(pod, lambda: bool(host.status.reason))
        assert host.docker.find("POD")
        assert not host.docker.find("main")
        host.switch.unavailable = False
        host.docker.pulls["toolbox"] = None
        await host.live(pod, lambda: host.status.phase == "Running")


async def test_container_created_before_the_network_failed_is_started_later(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.docker = SandboxStartsLate("pause", "toolbox")
        host.switch.unavailable = True
        await host.live(WITHOUT_PULL, lambda: bool(host.status.reason))
        assert host.docker.created.is_set()
        host.switch.unavailable = False
        await host.live(WITHOUT_PULL, lambda: host.status.phase == "Running")
        [container] = host.docker.find("main")
        assert (container.running, container.restart_count) == (True, 0)


async def test_hosts_file_write_is_retried(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        path, polls = directory_for(etc_hosts_path(host.host, make_pod().metadata.uid)), count()

        def runs() -> bool:
            if path.is_dir() and host.switch.attached and next(polls) > POLLS:
                assert not host.docker.find("main"), "nothing starts without it"
                path.rmdir()
            return host.status.phase == "Running"

        await host.live(SOON, runs)
        assert ("FailedSync", f"Error syncing pod: {path}: Is a directory", "") in host.recorded_events
        assert "web" in await asyncio.to_thread(path.read_text)


async def test_unreachable_docker_changes_no_running_pod(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        await started(host)
        before = host.remaining()
        host.docker.trouble = NotReady("Docker does not answer")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await host.live(PAIR, lambda: False)
        host.docker.trouble = None
        await started(host)
        assert host.remaining() == before


async def test_pod_past_its_active_deadline_ends_gracefully_and_fails(tmp_path: Path) -> None:
    pod = make_pod(
        """[{name: main, image: toolbox, command: ["trap 'exit 7' TERM"]}]""", "  activeDeadlineSeconds: 3600"
    )
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Running")
        host.status = replace(host.status, start_time="2026-01-01T00:00:00Z")
        await host.live(pod, lambda: host.status.phase == "Failed")
        assert host.status.reason == "DeadlineExceeded"
        assert host.docker.signals == [("main", "SIGTERM"), ("POD", "SIGKILL")]
        assert host.status.container_statuses[0].state.terminated is not None
        assert not host.switch.attached
        started = list(host.docker.started)
        await host.live(pod, lambda: True)
        assert host.docker.started == started, "a pod that has failed starts nothing again"
        assert (host.status.phase, host.status.reason) == ("Failed", "DeadlineExceeded")


async def test_active_deadline_ends_a_pod_on_time(tmp_path: Path) -> None:
    pod = make_pod(spec="  activeDeadlineSeconds: 1\n  terminationGracePeriodSeconds: 0")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Failed")
        assert host.status.reason == "DeadlineExceeded"
        assert len(host.docker.started) == 2


async def test_container_violating_run_as_non_root_waits_with_a_reason(tmp_path: Path) -> None:
    pod = make_pod("[{name: main, image: toolbox, securityContext: {runAsNonRoot: true}}]")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: bool(host.status.container_statuses))
        state = host.status.container_statuses[0].state.waiting
        assert state is not None
        assert state.reason == "CreateContainerConfigError"
        assert "image will run as root" in state.message


async def test_image_pull_tries_the_pods_credentials_and_then_none(tmp_path: Path) -> None:
    pod = make_pod("[{name: main, image: 'r.io/a:1'}]", "  imagePullSecrets: [{name: p}, {name: missing}]")
    auths = {"r.io": {"username": "him", "password": "his"}, "other.io": {"username": "her", "password": "x"}}
    secret = Secret(
        metadata=ObjectMeta(name="p", namespace="red"),
        data={".dockerconfigjson": msgspec.json.encode({"auths": auths})},
    )
    async with fake_host(tmp_path / "w") as host:
        host.docker.pulls["r.io/a:1"] = None
        host.docker.passwords["r.io/a:1"] = Credential("him", "other")
        host.objects.put(secret)
        await host.live(pod, lambda: any(reason == "Failed" for reason, _, _ in host.recorded_events))
        assert host.docker.pull_requests == ["him", ""]
        state = host.status.container_statuses[0].state.waiting
        assert state is not None
        assert state.reason in {"ErrImagePull", "ImagePullBackOff"}
        assert "FailedToRetrieveImagePullSecret" in {reason for reason, _, _ in host.recorded_events}
        host.docker.passwords["r.io/a:1"] = Credential("him", "his")
        await host.live(pod, lambda: host.status.phase == "Running")


LOUD = '{name: NAME, image: toolbox, command: ["echo help; exit 3"], terminationMessagePolicy: POLICY}'


async def test_termination_message_is_a_file_or_the_end_of_the_log(tmp_path: Path) -> None:
    container_texts = (LOUD.replace("NAME", name).replace("POLICY", how) for name, how in WORDS.items())
    pod = make_pod(f"[{', '.join(container_texts)}]", "  restartPolicy: Never")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Failed")
        messages = {
            status.name: status.state.terminated.message
            for status in host.status.container_statuses
            if status.state.terminated
        }
        assert messages == {"main": "", "side": "help\n"}


WORDS = {"main": "File", "side": "FallbackToLogsOnError"}


async def test_container_gets_its_grace_period_and_one_stop_signal(tmp_path: Path) -> None:
    pod = make_pod("""[{name: main, image: toolbox, command: ["trap 'exit 7' TERM"]}]""")
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Running")
        await host.live(pod, lambda: host.terminated, leave=True)
        assert [signal for signal in host.docker.signals if signal[0] == "main"] == [("main", "SIGTERM")]
        assert host.status.container_statuses[0].state.terminated is not None
        assert host.status.container_statuses[0].state.terminated.exit_code == 7
        assert host.remaining()["containers"] == []
        assert host.remaining()["directories"] == []


async def test_container_gets_the_whole_requested_grace_period(tmp_path: Path) -> None:
    """The grace period does not end at deletionTimestamp, which has whole seconds and comes from another clock."""
    pod = make_pod()
    deleted_metadata = replace(
        pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=600
    )
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Running")
        await host.live(replace(pod, metadata=deleted_metadata), lambda: bool(host.docker.signals))
        assert host.docker.signals == [("main", "SIGTERM")]
        shorter = replace(deleted_metadata, deletion_grace_period_seconds=0)
        await host.live(replace(pod, metadata=shorter), lambda: host.terminated)
        assert ("main", "SIGKILL") in host.docker.signals


async def test_pod_without_an_object_has_two_seconds_to_end(tmp_path: Path) -> None:
    pod = from_api_server(make_pod(spec="  terminationGracePeriodSeconds: 600"))
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Running")
        await host.live(pod, lambda: host.terminated, leave=True)
        assert host.docker.signals[:2] == [("main", "SIGTERM"), ("main", "SIGKILL")]


async def test_container_gets_its_own_stop_signal(tmp_path: Path) -> None:
    pod = make_pod(
        "[{name: main, image: toolbox, lifecycle: {stopSignal: SIGUSR1}}]", "  terminationGracePeriodSeconds: 1"
    )
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Running")
        await host.live(pod, lambda: host.terminated, leave=True)
        assert host.docker.signals[0] == ("main", "SIGUSR1")


async def test_sandbox_that_lost_its_network_is_replaced(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        await started(host)
        host.switch.rejected_sandboxes = set(host.switch.attached)
        await host.live(PAIR, lambda: host.restarts() == [1, 1])
        assert [container.attempt for container in host.docker.find("POD")] == [1]
        assert host.status.phase == "Running"
        assert len(host.switch.attached) == 1


HERE = make_pod("[{name: main, image: toolbox, imagePullPolicy: IfNotPresent}]", "  terminationGracePeriodSeconds: 0")
PRESENT = ("Pulled", 'Container image "toolbox" already present on machine and can be accessed by the pod', "main")
START_EVENTS = [PRESENT, ("Created", "Container created", "main"), ("Started", "Container started", "main")]


async def test_pod_lifecycle_emits_events(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        await host.live(HERE, lambda: host.status.phase == "Running")
        assert host.recorded_events == START_EVENTS
        host.recorded_events.clear()
        await host.end("POD", 137)
        await host.live(HERE, lambda: host.restarts() == [1])
        assert host.recorded_events == [
            ("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.", ""),
            *START_EVENTS,
        ]
        host.recorded_events.clear()
        await host.live(HERE, lambda: host.terminated, leave=True)
        assert host.recorded_events == [("Killing", "Stopping container main", "main")]


async def test_missing_cluster_dns_emits_an_event(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.host = dataclasses.replace(host.host, cluster_dns=())
        await host.live(HERE, lambda: host.status.phase == "Running")
        [message] = [message for reason, message, _ in host.recorded_events if reason == "MissingClusterDNS"]
        assert 'pod: "web_red(0b7c)"' in message
        assert 'using "ClusterFirst" policy' in message


async def test_missing_pause_image_is_pulled(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "w") as host:
        host.docker.images.remove("pause")
        host.docker.pulls["pause"] = Refused("Docker: pull access denied")
        denied = "Failed to create pod sandbox: Docker: pull access denied"
        await host.live(HERE, lambda: ("FailedCreatePodSandBox", denied, "") in host.recorded_events)
        host.docker.pulls["pause"] = None
        await host.live(HERE, lambda: host.status.phase == "Running")
        assert host.docker.pull_requests == [""] * 2
        host.docker.pull_requests.clear()
        await host.end("POD", 137)
        await host.live(HERE, lambda: host.restarts() == [1])
        assert not host.docker.pull_requests


async def test_back_off_event_is_emitted_once_per_crash(tmp_path: Path) -> None:
    pod = make_pod('[{name: main, image: toolbox, command: ["exit 1"], imagePullPolicy: Never}]')
    async with fake_host(tmp_path / "w") as host:
        waiting = ("BackOff", "Back-off restarting failed container main in pod web_red(0b7c)", "main")
        await host.live(pod, lambda: waiting in host.recorded_events)
        assert host.recorded_events == [*START_EVENTS, *START_EVENTS, waiting]


async def test_missing_program_ends_a_pod_that_may_not_restart(tmp_path: Path) -> None:
    pod = make_pod(
        '[{name: main, image: toolbox, command: ["/nowhere"], imagePullPolicy: Never}]', "  restartPolicy: Never"
    )
    async with fake_host(tmp_path / "w") as host:
        await host.live(pod, lambda: host.status.phase == "Failed")
        end = host.status.container_statuses[0].state.terminated
        assert end is not None
        assert (end.reason, end.exit_code) == ("ContainerCannotRun", 127)


async def test_image_pull_failure_is_reported(tmp_path: Path) -> None:
    pod = make_pod("[{name: main, image: nowhere, imagePullPolicy: IfNotPresent}]")
    async with fake_host(tmp_path / "w") as host:
        host.docker.pulls["nowhere"] = Refused("Docker: pull access denied")
        await host.live(pod, lambda: ("Failed", "Error: ErrImagePull", "main") in host.recorded_events)
        assert [(reason, message) for reason, message, _ in host.recorded_events[:3]] == [
            ("Pulling", 'Pulling image "nowhere"'),
            ("Failed", 'Failed to pull image "nowhere": Docker: pull access denied'),
            ("Failed", "Error: ErrImagePull"),
        ]


@pytest.mark.parametrize("is_requested", [True, False])
async def test_terminating_pod_does_not_wait_for_its_image(tmp_path: Path, is_requested: bool) -> None:
    pod = make_pod("[{name: main, image: nowhere}]")
    deleted_metadata = replace(
        pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=600
    )
    async with fake_host(tmp_path / "w") as host:
        host.docker.silent.add("nowhere")
        worker = host.worker(pod)
        living = asyncio.create_task(host.run(worker))
        async with asyncio.timeout(10):
            while not host.docker.pull_requests:
                await asyncio.sleep(0.01)
            if is_requested:
                worker.update(replace(pod, metadata=deleted_metadata))
            else:
                worker.terminate()
            await living
        assert host.terminated
        assert host.remaining()["containers"] == []
        assert [reason for reason, _, _ in host.recorded_events] == ["Pulling"]


async def test_missing_program_and_unavailable_network_are_reported(tmp_path: Path) -> None:
    pod = make_pod('[{name: main, image: toolbox, command: ["/nowhere"], imagePullPolicy: Never}]')
    async with fake_host(tmp_path / "w") as host:
        host.switch.unavailable = True
        message = "Failed to create pod sandbox: network: sdn: no subnet yet"
        await host.live(pod, lambda: ("FailedCreatePodSandBox", message, "") in host.recorded_events)
        host.switch.unavailable = False
        host.recorded_events.clear()
        await host.live(pod, lambda: any(reason == "Failed" for reason, _, _ in host.recorded_events))
        assert [reason for reason, _, _ in host.recorded_events[:3]] == ["Pulled", "Created", "Failed"]
        assert "/nowhere: no such file or directory" in host.recorded_events[2][1]


async def test_gather_both_runs_both_concurrently() -> None:
    first_started, second_started = asyncio.Event(), asyncio.Event()

    async def first() -> int:
        first_started.set()
        await second_started.wait()
        return 1

    async def second() -> str:
        await first_started.wait()
        second_started.set()
        return "2"

    assert await gather_both(first(), second()) == (1, "2")


@pytest.mark.parametrize("is_first", [True, False])
async def test_gather_both_raises_an_error_after_the_other_ended(is_first: bool) -> None:
    ended = []

    async def fails() -> None:
        raise LookupError

    async def works() -> None:
        await asyncio.sleep(0)
        ended.append(True)

    with pytest.raises(LookupError):
        await (gather_both(fails(), works()) if is_first else gather_both(works(), fails()))
    assert ended


async def test_cancelled_gather_both_cancels_both() -> None:
    ended = []

    async def wait_forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(gather_both(wait_forever(), wait_forever()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, True]


SMALL = make_pod(
    """[{name: main, image: toolbox, imagePullPolicy: IfNotPresent,
      resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 64Mi}}}]"""
)


def with_cpu(pod: Pod, request: str, limit: str, policy: str = "NotRequired") -> Pod:
    """Return the pod after a resize of its CPU."""
    container = pod.spec.containers[0]
    resources = replace(
        container.resources,
        requests={**container.resources.requests, "cpu": request},
        limits={**container.resources.limits, "cpu": limit},
    )
    policies = (ContainerResizePolicy(resource_name="cpu", restart_policy=policy),)
    container = replace(container, resources=resources, resize_policy=policies)
    return replace(pod, spec=replace(pod.spec, containers=(container,)))


def limits_of(host: FakeHost) -> tuple[str, str]:
    """Return the CPU limit in the status, and the CPU request that is allocated."""
    (status,) = host.status.container_statuses
    assert status.resources is not None
    return str(status.resources.limits["cpu"]), str(status.allocated_resources["cpu"])


def resize_conditions(host: FakeHost) -> list[tuple[str, str, str]]:
    return [
        (condition.type, condition.reason, condition.message)
        for condition in host.status.conditions
        if "Resize" in condition.type
    ]


@pytest.mark.parametrize("cpu", ["300m", "50m"])
async def test_resize_changes_the_running_container_and_its_status(tmp_path: Path, cpu: str) -> None:
    async with fake_host(tmp_path / "host") as host:
        await host.live(SMALL, lambda: host.status.phase == "Running")
        (before,) = host.docker.find("main")
        await host.live(
            with_cpu(SMALL, cpu, cpu), lambda: bool(host.status.container_statuses) and limits_of(host) == (cpu, cpu)
        )
        (after,) = host.docker.find("main")
        assert (after.id, after.running, after.restart_count) == (before.id, True, 0)
        assert after.resources is not None
        assert after.resources.cpu_quota == int(cpu.removesuffix("m")) * 100
        assert after.resources.memory == 64 << 20
        assert resize_conditions(host) == []


async def test_resize_restarts_a_container_whose_policy_says_so(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "host") as host:
        pod = with_cpu(SMALL, "100m", "200m", "RestartContainer")
        pod = replace(pod, spec=replace(pod.spec, termination_grace_period_seconds=0))
        await host.live(pod, lambda: host.status.phase == "Running")
        resized = with_cpu(pod, "300m", "400m", "RestartContainer")
        await host.live(
            resized,
            lambda: (
                bool(host.status.container_statuses)
                and host.status.container_statuses[0].restart_count == 1
                and limits_of(host) == ("400m", "300m")
            ),
        )
        running = host.docker.running("main")
        assert running is not None
        assert host.docker.spec_of(running).cpu_quota == 40_000


@pytest.mark.parametrize("reason", ["Deferred", "Infeasible"])
async def test_resize_without_room_changes_nothing_until_there_is_room(tmp_path: Path, reason: str) -> None:
    async with fake_host(tmp_path / "host") as host:
        await host.live(SMALL, lambda: host.status.phase == "Running")
        host.resize_rejection = PendingResize(reason, "no room")
        large = with_cpu(SMALL, "3", "4")
        await host.live(large, lambda: bool(resize_conditions(host)))
        assert resize_conditions(host) == [("PodResizePending", reason, "no room")]
        assert limits_of(host) == ("200m", "100m")
        (held,) = host.docker.find("main")
        assert held.resources is not None
        assert held.resources.cpu_quota == 20_000
        host.resize_rejection = None
        await host.live(large, lambda: limits_of(host) == ("4", "3"))
        assert resize_conditions(host) == []


async def test_resize_that_docker_refuses_is_in_progress_with_the_error(tmp_path: Path) -> None:
    async with fake_host(tmp_path / "host") as host:
        await host.live(SMALL, lambda: host.status.phase == "Running")
        container = SMALL.spec.containers[0]
        resources = replace(
            container.resources,
            limits={**container.resources.limits, "memory": "1Mi"},
            requests={**container.resources.requests, "memory": "1Mi"},
        )
        tiny = replace(SMALL, spec=replace(SMALL.spec, containers=(replace(container, resources=resources),)))
        await host.live(tiny, lambda: any(reason == "Error" for _, reason, _ in resize_conditions(host)))
        ((name, _, message),) = resize_conditions(host)
        assert (name, message) == ("PodResizeInProgress", "Docker: Minimum memory limit allowed is 6MB")
        (status,) = host.status.container_statuses
        assert status.resources is not None
        assert status.resources.limits["memory"] == "64Mi"
