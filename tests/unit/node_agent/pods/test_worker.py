"""The lifetime of a pod against a Docker in memory, with the agent killed after every call."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from api.core.config import Secret
from api.meta.types import ObjectMeta
from api.validation.static_pods import from_api_server
from node_agent.clock import steady_clock
from node_agent.config import PAUSE_IMAGE
from node_agent.host import etc_hosts_path
from node_agent.images.credentials import Credential
from node_agent.pods.worker import gather_both
from node_agent.runtime.actions import PodActions
from node_agent.runtime.pod_dir import make_pod_dir
from node_agent.runtime.sandbox import create_container
from node_agent.runtime.spec import ContainerConfig
from reconcile.errors import Gone, NotReady, Refused
from tests.testbed.docker.fake import FakeDocker
from tests.unit.node_agent.examples import pod
from tests.unit.node_agent.world import POLLS, World, kill_anywhere, world

PAIR = pod("[{name: main, image: toolbox}, {name: side, image: toolbox}]", "  volumes: [{name: v, emptyDir: {}}]")
SOON = pod(spec="  terminationGracePeriodSeconds: 0")
ONCE = pod('[{name: main, image: toolbox, command: ["exit 0"]}]', "  restartPolicy: Never")
STEPS = pod(
    spec="""\
  initContainers:
  - {name: first, image: toolbox, command: ["exit 0"]}
  - {name: side, image: toolbox, restartPolicy: Always}
  - {name: second, image: toolbox, command: ["exit 0"]}
"""
)
STEPS_ONCE = pod(
    '[{name: main, image: toolbox, command: ["exit 0"]}]',
    """\
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  initContainers: [{name: side, image: toolbox, restartPolicy: Always}]
""",
)
NEWER = replace(SOON, spec=replace(SOON.spec, containers=(replace(SOON.spec.containers[0], image="toolbox:2"),)))


async def started(here: World) -> None:
    await here.live(
        PAIR, lambda: here.status.phase == "Running" and all(r.ready for r in here.status.container_statuses)
    )


async def crashed(here: World) -> None:
    """A container ends once and is started again, without a wait."""
    await here.once("runs", lambda: started(here))
    await here.once("ended", lambda: here.end("main", 1))
    await here.live(PAIR, lambda: here.restarts() == [1, 0])


async def sandbox_lost(here: World) -> None:
    """The sandbox is killed from outside; everything comes back in a new one."""
    await here.once("runs", lambda: started(here))
    await here.once("lost", lambda: here.end("POD", 137))
    await here.live(PAIR, lambda: here.restarts() == [1, 1])


async def done(here: World) -> None:
    """A container does its work and ends."""
    await here.live(ONCE, lambda: here.status.phase == "Succeeded")


async def initialized(here: World) -> None:
    """Init containers end one after the other, the sidecar stays."""
    await here.live(STEPS, lambda: here.status.phase == "Running")


async def initialized_anew(here: World) -> None:
    """The sandbox is killed from outside: init begins again."""
    await here.once("runs", lambda: initialized(here))
    await here.once("lost", lambda: here.end("POD", 137))
    await here.live(STEPS, lambda: here.restarts() == [1, 1])


async def done_beside_a_sidecar(here: World) -> None:
    """The work is done, the sidecar is stopped."""
    await here.live(STEPS_ONCE, lambda: here.status.phase == "Succeeded")


async def changed_image(here: World) -> None:
    """The pod gets another image while it runs."""
    await here.once("runs", lambda: here.live(SOON, lambda: here.status.phase == "Running"))
    await here.live(NEWER, lambda: here.restarts() == [1])


async def deleted(here: World) -> None:
    """The pod is wanted no more."""
    await here.once("runs", lambda: here.live(SOON, lambda: here.status.phase == "Running"))
    if not here.gone:
        await here.live(SOON, lambda: here.gone, leave=True)


SCENARIOS = [
    started,
    crashed,
    sandbox_lost,
    done,
    initialized,
    initialized_anew,
    done_beside_a_sidecar,
    changed_image,
    deleted,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_agent_killed_after_any_call_reaches_the_same_state(
    scenario: Callable[[World], Awaitable[None]], tmp_path: Path
) -> None:
    await kill_anywhere(scenario, tmp_path)


async def test_image_removed_while_waiting_for_the_network_is_reported_missing(tmp_path: Path) -> None:
    async with world(tmp_path / "host") as here:
        here.switch.away = True

        def waits_for_its_image() -> bool:
            if here.status.reason == "FailedCreatePodSandBox":
                here.docker.images.discard("toolbox")
                here.switch.away = False
            states = [row.state.waiting for row in here.status.container_statuses]
            return any(state is not None and "Image" in state.reason for state in states)

        await here.live(SOON, waits_for_its_image)
        assert here.docker.running("main") is None


async def test_pod_waits_for_an_unavailable_network_with_a_reason(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        here.switch.away = True
        await here.live(SOON, lambda: bool(here.status.reason))
        assert (here.status.phase, here.status.reason) == ("Pending", "FailedCreatePodSandBox")
        assert here.status.message == "network: sdn: no subnet yet"
        here.switch.away = False
        await here.live(SOON, lambda: here.status.phase == "Running")
        assert (here.status.reason, here.status.message) == ("", "")


def directory_for(file: str) -> Path:
    """Where a file should be."""
    path = Path(file)
    path.mkdir(parents=True)
    return path


async def test_hosts_file_write_is_retried(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        path, looks = directory_for(etc_hosts_path(here.host, pod().metadata.uid)), count()

        def runs() -> bool:
            if path.is_dir() and here.switch.attached and next(looks) > POLLS:
                assert not here.docker.find("main"), "nothing starts without it"
                path.rmdir()
            return here.status.phase == "Running"

        await here.live(SOON, runs)
        assert ("FailedSync", f"Error syncing pod: {path}: Is a directory", "") in here.told
        assert "web" in await asyncio.to_thread(path.read_text)


async def test_unreachable_docker_changes_no_running_pod(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        await started(here)
        before = here.left()
        here.docker.trouble = NotReady("Docker does not answer")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await here.live(PAIR, lambda: False)
        here.docker.trouble = None
        await started(here)
        assert here.left() == before


async def test_pod_past_its_active_deadline_ends_gracefully_and_fails(tmp_path: Path) -> None:
    wish = pod("""[{name: main, image: toolbox, command: ["trap 'exit 7' TERM"]}]""", "  activeDeadlineSeconds: 3600")
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Running")
        here.status = replace(here.status, start_time="2026-01-01T00:00:00Z")
        await here.live(wish, lambda: here.status.phase == "Failed")
        assert here.status.reason == "DeadlineExceeded"
        assert here.docker.signals == [("main", "SIGTERM"), ("POD", "SIGKILL")]
        assert here.status.container_statuses[0].state.terminated is not None
        assert not here.switch.attached
        started = list(here.docker.started)
        await here.live(wish, lambda: True)
        assert here.docker.started == started, "a pod that has failed starts nothing again"
        assert (here.status.phase, here.status.reason) == ("Failed", "DeadlineExceeded")


async def test_active_deadline_ends_a_pod_on_time(tmp_path: Path) -> None:
    wish = pod(spec="  activeDeadlineSeconds: 1\n  terminationGracePeriodSeconds: 0")
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Failed")
        assert here.status.reason == "DeadlineExceeded"
        assert len(here.docker.started) == 2


async def test_container_violating_run_as_non_root_waits_with_a_reason(tmp_path: Path) -> None:
    wish = pod("[{name: main, image: toolbox, securityContext: {runAsNonRoot: true}}]")
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: bool(here.status.container_statuses))
        waiting = here.status.container_statuses[0].state.waiting
        assert waiting is not None
        assert waiting.reason == "CreateContainerConfigError"
        assert "image will run as root" in waiting.message


async def test_image_pull_tries_the_pods_credentials_and_then_none(tmp_path: Path) -> None:
    wish = pod("[{name: main, image: 'r.io/a:1'}]", "  imagePullSecrets: [{name: p}, {name: missing}]")
    auths = {"r.io": {"username": "him", "password": "his"}, "other.io": {"username": "her", "password": "x"}}
    secret = Secret(
        metadata=ObjectMeta(name="p", namespace="red"),
        data={".dockerconfigjson": msgspec.json.encode({"auths": auths})},
    )
    async with world(tmp_path / "w") as here:
        here.docker.pulls["r.io/a:1"] = None
        here.docker.passwords["r.io/a:1"] = Credential("him", "other")
        here.objects.put(secret)
        await here.live(wish, lambda: any(reason == "Failed" for reason, _, _ in here.told))
        assert here.docker.asked == ["him", ""]
        waiting = here.status.container_statuses[0].state.waiting
        assert waiting is not None
        assert waiting.reason in {"ErrImagePull", "ImagePullBackOff"}
        assert "FailedToRetrieveImagePullSecret" in {reason for reason, _, _ in here.told}
        here.docker.passwords["r.io/a:1"] = Credential("him", "his")
        await here.live(wish, lambda: here.status.phase == "Running")


LOUD = '{name: NAME, image: toolbox, command: ["echo help; exit 3"], terminationMessagePolicy: POLICY}'


async def test_termination_message_is_a_file_or_the_end_of_the_log(tmp_path: Path) -> None:
    rows = (LOUD.replace("NAME", name).replace("POLICY", how) for name, how in WORDS.items())
    wish = pod(f"[{', '.join(rows)}]", "  restartPolicy: Never")
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Failed")
        told = {
            row.name: row.state.terminated.message for row in here.status.container_statuses if row.state.terminated
        }
        assert told == {"main": "", "side": "help\n"}


WORDS = {"main": "File", "side": "FallbackToLogsOnError"}


async def test_container_gets_its_grace_period_and_one_stop_signal(tmp_path: Path) -> None:
    wish = pod("""[{name: main, image: toolbox, command: ["trap 'exit 7' TERM"]}]""")
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Running")
        await here.live(wish, lambda: here.gone, leave=True)
        assert [signal for signal in here.docker.signals if signal[0] == "main"] == [("main", "SIGTERM")]
        assert here.status.container_statuses[0].state.terminated is not None
        assert here.status.container_statuses[0].state.terminated.exit_code == 7
        assert here.left()["containers"] == []
        assert here.left()["directories"] == []


async def test_container_gets_the_whole_requested_grace_period(tmp_path: Path) -> None:
    """Not what is left until deletionTimestamp, whose seconds are whole, by a clock that is not ours."""
    wish = pod()
    going = replace(wish.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=600)
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Running")
        await here.live(replace(wish, metadata=going), lambda: bool(here.docker.signals))
        assert here.docker.signals == [("main", "SIGTERM")]
        shorter = replace(going, deletion_grace_period_seconds=0)
        await here.live(replace(wish, metadata=shorter), lambda: here.gone)
        assert ("main", "SIGKILL") in here.docker.signals


async def test_pod_without_an_object_has_two_seconds_to_end(tmp_path: Path) -> None:
    wish = from_api_server(pod(spec="  terminationGracePeriodSeconds: 600"))
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Running")
        await here.live(wish, lambda: here.gone, leave=True)
        assert here.docker.signals[:2] == [("main", "SIGTERM"), ("main", "SIGKILL")]


async def test_container_gets_its_own_stop_signal(tmp_path: Path) -> None:
    wish = pod("[{name: main, image: toolbox, lifecycle: {stopSignal: SIGUSR1}}]", "  terminationGracePeriodSeconds: 1")
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Running")
        await here.live(wish, lambda: here.gone, leave=True)
        assert here.docker.signals[0] == ("main", "SIGUSR1")


async def test_sandbox_that_lost_its_network_is_replaced(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        await started(here)
        here.switch.stranded = set(here.switch.attached)
        await here.live(PAIR, lambda: here.restarts() == [1, 1])
        assert [one.attempt for one in here.docker.find("POD")] == [1]
        assert here.status.phase == "Running"
        assert len(here.switch.attached) == 1


HERE = pod("[{name: main, image: toolbox, imagePullPolicy: IfNotPresent}]", "  terminationGracePeriodSeconds: 0")
PRESENT = ("Pulled", 'Container image "toolbox" already present on machine and can be accessed by the pod', "main")
BEGUN = [PRESENT, ("Created", "Container created", "main"), ("Started", "Container started", "main")]


async def test_pod_lifecycle_emits_events(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        await here.live(HERE, lambda: here.status.phase == "Running")
        assert here.told == BEGUN
        here.told.clear()
        await here.end("POD", 137)
        await here.live(HERE, lambda: here.restarts() == [1])
        assert here.told == [("SandboxChanged", "Pod sandbox changed, it will be killed and re-created.", ""), *BEGUN]
        here.told.clear()
        await here.live(HERE, lambda: here.gone, leave=True)
        assert here.told == [("Killing", "Stopping container main", "main")]


async def test_missing_cluster_dns_emits_an_event(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        here.host = dataclasses.replace(here.host, cluster_dns=())
        await here.live(HERE, lambda: here.status.phase == "Running")
        [words] = [message for reason, message, _ in here.told if reason == "MissingClusterDNS"]
        assert 'pod: "web_red(0b7c)"' in words
        assert 'using "ClusterFirst" policy' in words


async def test_missing_pause_image_is_pulled(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        here.docker.images.remove("pause")
        here.docker.pulls["pause"] = Refused("Docker: pull access denied")
        denied = "Failed to create pod sandbox: Docker: pull access denied"
        await here.live(HERE, lambda: ("FailedCreatePodSandBox", denied, "") in here.told)
        here.docker.pulls["pause"] = None
        await here.live(HERE, lambda: here.status.phase == "Running")
        assert here.docker.asked == [""] * 2
        here.docker.asked.clear()
        await here.end("POD", 137)
        await here.live(HERE, lambda: here.restarts() == [1])
        assert not here.docker.asked


async def test_locally_built_pause_image_is_not_pulled() -> None:
    docker = FakeDocker()
    docker.pulls[PAUSE_IMAGE] = None
    with pytest.raises(Gone):
        await create_container(docker, ContainerConfig(name="k8s_POD_web_red_0b7c_0", image=PAUSE_IMAGE, labels={}))
    assert not docker.asked


async def test_back_off_event_is_emitted_once_per_crash(tmp_path: Path) -> None:
    wish = pod('[{name: main, image: toolbox, command: ["exit 1"], imagePullPolicy: Never}]')
    async with world(tmp_path / "w") as here:
        waiting = ("BackOff", "Back-off restarting failed container main in pod web_red(0b7c)", "main")
        await here.live(wish, lambda: waiting in here.told)
        assert here.told == [*BEGUN, *BEGUN, waiting]


async def test_missing_program_ends_a_pod_that_may_not_restart(tmp_path: Path) -> None:
    wish = pod(
        '[{name: main, image: toolbox, command: ["/nowhere"], imagePullPolicy: Never}]', "  restartPolicy: Never"
    )
    async with world(tmp_path / "w") as here:
        await here.live(wish, lambda: here.status.phase == "Failed")
        end = here.status.container_statuses[0].state.terminated
        assert end is not None
        assert (end.reason, end.exit_code) == ("ContainerCannotRun", 127)


async def test_image_pull_failure_is_reported(tmp_path: Path) -> None:
    wish = pod("[{name: main, image: nowhere, imagePullPolicy: IfNotPresent}]")
    async with world(tmp_path / "w") as here:
        here.docker.pulls["nowhere"] = Refused("Docker: pull access denied")
        await here.live(wish, lambda: ("Failed", "Error: ErrImagePull", "main") in here.told)
        assert [(reason, message) for reason, message, _ in here.told[:3]] == [
            ("Pulling", 'Pulling image "nowhere"'),
            ("Failed", 'Failed to pull image "nowhere": Docker: pull access denied'),
            ("Failed", "Error: ErrImagePull"),
        ]


@pytest.mark.parametrize("asked", [True, False])
async def test_terminating_pod_does_not_wait_for_its_image(tmp_path: Path, asked: bool) -> None:
    wish = pod("[{name: main, image: nowhere}]")
    going = replace(wish.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=600)
    async with world(tmp_path / "w") as here:
        here.docker.silent.add("nowhere")
        worker = here.worker(wish)
        living = asyncio.create_task(here.run(worker))
        async with asyncio.timeout(10):
            while not here.docker.asked:
                await asyncio.sleep(0.01)
            if asked:
                worker.update(replace(wish, metadata=going))
            else:
                worker.terminate()
            await living
        assert here.gone
        assert here.left()["containers"] == []
        assert [reason for reason, _, _ in here.told] == ["Pulling"]


async def test_missing_program_and_unavailable_network_are_reported(tmp_path: Path) -> None:
    wish = pod('[{name: main, image: toolbox, command: ["/nowhere"], imagePullPolicy: Never}]')
    async with world(tmp_path / "w") as here:
        here.switch.away = True
        words = "Failed to create pod sandbox: network: sdn: no subnet yet"
        await here.live(wish, lambda: ("FailedCreatePodSandBox", words, "") in here.told)
        here.switch.away = False
        here.told.clear()
        await here.live(wish, lambda: any(reason == "Failed" for reason, _, _ in here.told))
        assert [reason for reason, _, _ in here.told[:3]] == ["Pulled", "Created", "Failed"]
        assert "/nowhere: no such file or directory" in here.told[2][1]


async def test_sandbox_start_is_retried_with_back_off(tmp_path: Path) -> None:
    async with world(tmp_path / "w") as here:
        sandbox, wish = here.sandbox(), pod()
        make_pod_dir(here.host, wish.metadata.uid)
        actions, waits = PodActions(sandbox_attempt=0), []

        async def fail() -> datetime:
            here.docker.trouble, before = NotReady("away"), steady_clock()
            with pytest.raises(NotReady):
                await sandbox.create(wish, 0, actions)
            here.docker.trouble = None
            assert sandbox.retry_at is not None
            waits.append(round((sandbox.retry_at - before).total_seconds()))
            return sandbox.retry_at

        assert not sandbox.is_backing_off(steady_clock())
        for _ in range(11):
            due = await fail()
            assert sandbox.is_backing_off(due - timedelta(milliseconds=1))
            assert not sandbox.is_backing_off(due)
        assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
        await sandbox.attach(wish, await sandbox.create(wish, 0, actions))
        assert not sandbox.is_backing_off(steady_clock())
        await fail()
        assert waits[-1] == 1


async def test_gather_both_runs_both_concurrently() -> None:
    one, other = asyncio.Event(), asyncio.Event()

    async def first() -> int:
        one.set()
        await other.wait()
        return 1

    async def second() -> str:
        await one.wait()
        other.set()
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

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(gather_both(waits(), waits()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, True]
