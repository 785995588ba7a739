"""The same cases on the fake Docker and on a real dockerd: both behave alike."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from lab import images
from lab.process import run
from node_agent.docker.client import DockerClient, LogLimits
from node_agent.docker.exec import MAX_OUTPUT_BYTES, ExecResult
from node_agent.images.credentials import Credential
from node_agent.images.pull_backoff import PullLimits
from node_agent.runtime import container as label
from node_agent.runtime.container import ContainerEvent, DockerResources, RuntimeContainer
from node_agent.runtime.security import SecurityOptions
from node_agent.stats import collector, disk
from node_agent.volumes import mounts
from reconcile.errors import Gone, NotReady, Refused
from tests.testbed.docker import registry as registry_of_debian
from tests.testbed.docker.containers import add_image, container, running_sandbox, sandbox
from tests.testbed.docker.daemon import DEADLINE_SECONDS, IGNORES_SIGTERM, Dockerd
from tests.testbed.docker.fake import FakeDocker

POLITE = ("sh", "-c", "trap 'exit 5' TERM; tail -f /dev/null & wait")
ABSENT = "127.0.0.1:9/absent:1"
UID = count(1)
LOGS = LogLimits(20_000, 2)
LOCAL = PullLimits(local_registries=("127.0.0.1",))

# Docker's library leaves the socket open with which it did not reach Docker.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*family=1,:ResourceWarning")


@pytest.fixture(params=["fake", "dockerd"])
def driver(request: pytest.FixtureRequest) -> Iterator[DockerClient]:
    if request.param == "fake":
        yield FakeDocker(images.PAUSE, images.TOOLBOX)
        return
    daemon: Dockerd = request.getfixturevalue("dockerd")
    real = DockerClient(str(daemon.socket), LOGS, pull_limits=LOCAL)
    yield real
    real.close()


@pytest.fixture
def uid() -> str:
    return f"uid-{next(UID)}"


async def started(driver: DockerClient, uid: str, command: tuple[str, ...]) -> str:
    network = await running_sandbox(driver, uid)
    identity = await driver.create(container(uid, await driver.image_id(images.TOOLBOX), network, command))
    await driver.start(identity)
    return identity


async def until(driver: DockerClient, identity: str, holds: Callable[[RuntimeContainer], bool]) -> RuntimeContainer:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds(seen := await driver.inspect(identity)):
            await asyncio.sleep(0.02)
    return seen


async def test_container_is_created_started_and_removed(driver: DockerClient, uid: str) -> None:
    identity = await driver.create(sandbox(uid))
    runtime_container = await driver.inspect(identity)
    assert (
        runtime_container.state,
        runtime_container.never_started,
        runtime_container.running,
        runtime_container.pid,
        runtime_container.started_at,
    ) == (
        "created",
        True,
        False,
        0,
        None,
    )
    assert runtime_container.created_at is not None
    await driver.start(identity)
    runs = await driver.inspect(identity)
    assert (runs.running, runs.exited, runs.is_sandbox, runs.pod_uid) == (True, False, True, uid)
    assert runs.pid > 0
    assert runs.started_at is not None
    assert runs.finished_at is None
    assert await driver.list_pod_containers(uid) == [runs]
    assert identity in await driver.list_sandboxes()
    assert (await driver.list_pods())[uid][label.POD_NAME] == "web"
    await driver.remove(identity)
    assert await driver.list_pod_containers(uid) == []
    assert uid not in await driver.list_pods()
    assert identity not in await driver.list_sandboxes()


async def test_sandboxes_are_listed_without_their_containers(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, IGNORES_SIGTERM)
    [network] = [
        runtime_container.id
        for runtime_container in await driver.list_pod_containers(uid)
        if runtime_container.is_sandbox
    ]
    await driver.kill(network, "SIGKILL")
    await until(driver, network, lambda runtime_container: not runtime_container.running)
    assert network in await driver.list_sandboxes()
    assert identity not in await driver.list_sandboxes()


async def test_exited_container_reports_exit_code_and_times(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, ("sh", "-c", "exit 3"))
    seen = await until(driver, identity, lambda runtime_container: not runtime_container.running)
    assert (seen.state, seen.exit_code, seen.oom_killed, seen.error, seen.exited) == ("exited", 3, False, "", True)
    assert seen.started_at is not None
    assert seen.finished_at is not None
    # Docker writes down the start of a short program after its end, by some microseconds.
    assert seen.finished_at - seen.started_at > timedelta(seconds=-1)


async def test_missing_program_fails_the_start_and_the_container(driver: DockerClient, uid: str) -> None:
    with pytest.raises(Refused, match="/nowhere"):
        await started(driver, uid, ("/nowhere",))
    [seen] = [
        runtime_container
        for runtime_container in await driver.list_pod_containers(uid)
        if not runtime_container.is_sandbox
    ]
    assert (seen.state, seen.exit_code, seen.never_started, seen.exited) == ("created", 127, False, True)
    assert (seen.started_at, seen.finished_at) == (None, None)
    assert "/nowhere" in seen.error


async def test_program_that_handles_sigterm_ends_after_it(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, POLITE)

    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await driver.inspect(identity)).running:
            await driver.kill(identity, "SIGTERM")  # again and again: the first may come before the trap is set
    assert (await driver.inspect(identity)).exit_code == 5


async def test_container_keeps_its_stop_signal(driver: DockerClient, uid: str) -> None:
    network = await running_sandbox(driver, uid)
    spec = container(uid, await driver.image_id(images.TOOLBOX), network, IGNORES_SIGTERM)
    for desired, configured in (("SIGUSR1", "SIGUSR1"), ("SIGRTMIN+3", "SIGRTMIN+3"), ("", "SIGTERM")):
        identity = await driver.create(replace(spec, stop_signal=desired))
        assert (await driver.inspect(identity)).stop_signal == configured


async def test_program_that_ignores_sigterm_ends_when_killed(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, IGNORES_SIGTERM)
    await driver.kill(identity, "SIGTERM")
    assert (await driver.inspect(identity)).running
    await driver.kill(identity, "SIGKILL")
    assert (await until(driver, identity, lambda runtime_container: not runtime_container.running)).exit_code == 137


async def test_signal_and_removal_of_an_ended_or_missing_container_succeed(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, ("sh", "-c", "exit 0"))
    await until(driver, identity, lambda runtime_container: not runtime_container.running)
    await driver.kill(identity, "SIGTERM")
    await driver.remove(identity)
    await driver.kill(identity, "SIGTERM")
    await driver.remove(identity)
    with pytest.raises(Gone):
        await driver.inspect(identity)
    with pytest.raises(Gone):
        await driver.start(identity)


async def test_removing_a_running_container_ends_its_program(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, IGNORES_SIGTERM)
    await driver.remove(identity)
    assert [runtime_container.name for runtime_container in await driver.list_pod_containers(uid)] == ["POD"]


async def test_discard_removes_a_created_container_and_not_a_running_one(driver: DockerClient, uid: str) -> None:
    identity = await driver.create(sandbox(uid))
    await driver.remove_unstarted(identity)
    await driver.remove_unstarted(identity)
    assert await driver.list_pod_containers(uid) == []
    network = await running_sandbox(driver, uid)
    with pytest.raises(Refused, match="cannot remove a running container"):
        await driver.remove_unstarted(network)
    assert (await driver.inspect(network)).running


async def test_name_of_a_dead_container_is_reused_and_that_of_a_running_one_is_not(
    driver: DockerClient, uid: str
) -> None:
    first = await driver.create(sandbox(uid))
    second = await driver.create(sandbox(uid))
    assert [runtime_container.id for runtime_container in await driver.list_pod_containers(uid)] == [second] != [first]
    await driver.start(second)
    with pytest.raises(Refused):
        await driver.create(sandbox(uid))
    assert (await driver.inspect(second)).running


def stick(driver: DockerClient, identity: str) -> Path:
    """Make a dead container impossible to remove. Return the file that prevents it with a real Docker."""
    if isinstance(driver, FakeDocker):
        driver.stuck.add(identity)
        return Path("/dev/null")
    held = Path(driver._socket).parent / "data" / "containers" / identity / "held"
    held.touch()
    run("chattr", "+i", str(held))
    return held


async def test_name_of_an_unremovable_dead_container_gets_a_suffix(driver: DockerClient, uid: str) -> None:
    first = await driver.create(sandbox(uid))
    held = stick(driver, first)
    try:
        with pytest.raises(Refused):
            await driver.remove(first)
        second = await driver.create(sandbox(uid))
        await driver.start(second)
        name = f"k8s_POD_web_red_{uid}_0"
        created = driver.held[second].spec.name if isinstance(driver, FakeDocker) else name_of(driver, second)
        assert re.fullmatch(f"{name}_[0-9a-f]{{8}}", created)
        assert {runtime_container.id for runtime_container in await driver.list_pod_containers(uid)} >= {second}
    finally:
        if held != Path("/dev/null"):
            run("chattr", "-i", str(held))


def name_of(driver: DockerClient, identity: str) -> str:
    return str(driver._api_client().inspect_container(identity)["Name"]).removeprefix("/")


async def test_container_cannot_join_a_stopped_sandbox(driver: DockerClient, uid: str) -> None:
    network = await driver.create(sandbox(uid))
    identity = await driver.create(container(uid, await driver.image_id(images.TOOLBOX), network, IGNORES_SIGTERM))
    with pytest.raises(Refused, match="non running"):
        await driver.start(identity)
    assert (await driver.inspect(identity)).exited


async def test_too_small_memory_limit_is_rejected_at_creation(driver: DockerClient, uid: str) -> None:
    network = await running_sandbox(driver, uid)
    spec = container(uid, await driver.image_id(images.TOOLBOX), network, IGNORES_SIGTERM)
    with pytest.raises(Refused, match="6MB"):
        await driver.create(replace(spec, memory=1 << 20))
    await driver.create(replace(spec, memory=8 << 20))


async def test_resources_of_a_running_container_are_updated(driver: DockerClient, uid: str) -> None:
    network = await running_sandbox(driver, uid)
    spec = container(uid, await driver.image_id(images.TOOLBOX), network, IGNORES_SIGTERM)
    identity = await driver.create(replace(spec, cpu_quota=20_000, memory=64 << 20))
    await driver.start(identity)
    before = await driver.inspect(identity)
    assert before.resources == DockerResources(2, 20_000, 64 << 20)
    for wanted in (DockerResources(512, 40_000, 128 << 20), DockerResources(100, 10_000, 32 << 20)):
        await driver.update(identity, wanted)
        after = await driver.inspect(identity)
        assert (after.resources, after.pid) == (wanted, before.pid)
    with pytest.raises(Refused, match="6MB"):
        await driver.update(identity, DockerResources(100, 10_000, 1 << 20))


async def test_image_lookup_distinguishes_present_missing_and_invalid_names(driver: DockerClient) -> None:
    assert (await driver.image_id(images.TOOLBOX)).startswith("sha256:")
    with pytest.raises(Gone):
        await driver.image_id("nobody/nothing:1")
    with pytest.raises(Refused):
        await driver.image_id("Nobody/Nothing:1")
    with pytest.raises(Gone, match="nothing"):
        await driver.create(replace(sandbox("uid-0"), image="nobody/nothing:1"))


async def test_images_are_listed_and_removed_unless_in_use(driver: DockerClient, uid: str) -> None:
    await add_image(driver, "podlane/extra:1")
    extra = await driver.image_id("podlane/extra:1")
    [image] = [stored_image for stored_image in await driver.list_images() if stored_image.id == extra]
    assert image.names == ("podlane/extra:1",)
    network = await running_sandbox(driver, uid)
    identity = await driver.create(container(uid, extra, network, IGNORES_SIGTERM))
    assert {extra, await driver.image_id(images.PAUSE)} <= await driver.images_in_use()
    with pytest.raises(Refused, match="conflict"):
        await driver.remove_image(image)
    await driver.remove(identity)
    assert extra not in await driver.images_in_use()
    await driver.remove_image(image)
    await driver.remove_image(image)
    assert image not in await driver.list_images()
    with pytest.raises(Gone):
        await driver.image_id("podlane/extra:1")


async def test_container_list_includes_exit_states(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, ("sh", "-c", "exit 3"))
    dead = await until(driver, identity, lambda runtime_container: not runtime_container.running)
    actual = {
        runtime_container.id: runtime_container
        for runtime_container in await driver.list_containers()
        if runtime_container.pod_uid == uid
    }
    assert actual[identity] == dead
    [network] = [runtime_container for runtime_container in actual.values() if runtime_container.is_sandbox]
    assert (network.running, network.labels[label.POD_NAME]) == (True, "web")
    assert network.image_id == await driver.image_id(images.PAUSE)


async def test_started_container_has_a_log_path(driver: DockerClient, uid: str) -> None:
    network = await running_sandbox(driver, uid)
    identity = await driver.create(container(uid, await driver.image_id(images.TOOLBOX), network, IGNORES_SIGTERM))
    assert (await driver.inspect(identity)).log_path == ""
    await driver.start(identity)
    assert identity in Path((await driver.inspect(identity)).log_path).name


async def test_images_are_listed_with_names_and_sizes(driver: DockerClient) -> None:
    actual = {name: image.size_bytes for image in await driver.list_named_images() for name in image.names}
    assert {name if ":" in name else f"{name}:latest" for name in (images.PAUSE, images.TOOLBOX)} <= actual.keys()
    assert all(size > 0 for size in actual.values())


async def test_unreachable_registry_is_a_retryable_error(driver: DockerClient) -> None:
    with pytest.raises(NotReady, match="refused"):
        await driver.pull(ABSENT)


async def test_docker_events_name_the_container_and_its_pod(driver: DockerClient, uid: str) -> None:
    received: asyncio.Queue[ContainerEvent] = asyncio.Queue()
    connected = asyncio.Event()

    async def next_of_ours() -> ContainerEvent:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (event := await received.get()).pod_uid != uid:
                pass
        return event

    following = asyncio.create_task(driver.watch_events(received.put_nowait, connected.set))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await connected.wait()
    identity = await driver.create(sandbox(uid))
    for action, act in (
        ("start", driver.start(identity)),
        ("die", driver.kill(identity, "SIGKILL")),
        ("destroy", driver.remove(identity)),
    ):
        await act
        assert await next_of_ours() == ContainerEvent(action, identity, uid)
    following.cancel()


async def test_exec_returns_output_and_exit_code(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, IGNORES_SIGTERM)
    assert await driver.exec(identity, ("echo", "all", "is well"), 10) == ExecResult(0, "all is well\n")
    assert (await driver.exec(identity, ("sh", "-c", "exit 3"), 10)).exit_code == 3
    absent = await driver.exec(identity, ("/nowhere",), 10)
    assert absent.exit_code in {126, 127}
    assert "/nowhere" in absent.output
    assert (await driver.inspect(identity)).running


async def test_exec_returns_at_its_timeout(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, IGNORES_SIGTERM)
    assert (await driver.exec(identity, IGNORES_SIGTERM, 0.3)).exit_code is None
    assert (await driver.inspect(identity)).running


async def test_exec_in_a_stopped_container_fails(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, ("sh", "-c", "exit 0"))
    await until(driver, identity, lambda runtime_container: not runtime_container.running)
    with pytest.raises(Refused, match="not running"):
        await driver.exec(identity, ("echo",), 10)
    await driver.remove(identity)
    with pytest.raises(Gone):
        await driver.exec(identity, ("echo",), 10)


async def test_log_tail_returns_the_last_lines(driver: DockerClient, uid: str) -> None:
    identity = await started(driver, uid, ("sh", "-c", "echo one; echo two; echo three; exit 1"))
    await until(driver, identity, lambda runtime_container: not runtime_container.running)
    assert await driver.log_tail(identity, 80, 2048) == "one\ntwo\nthree\n"
    assert await driver.log_tail(identity, 2, 2048) == "two\nthree\n"
    assert await driver.log_tail(identity, 2, 6) == "three\n"
    with pytest.raises(Gone):
        await driver.log_tail("nobody", 2, 6)


# --- what only the real one can show ----------------------------------------------------------------------------------


@pytest.fixture
async def registry() -> AsyncIterator[tuple[str, dict[str, int]]]:
    """Run an empty registry. HTTP status codes are set by the name of the image."""
    answers: dict[str, int] = {}

    async def manifest(request: web.Request) -> web.Response:
        code = {404: "MANIFEST_UNKNOWN", 401: "UNAUTHORIZED"}.get(
            answers.get(request.match_info["name"], 404), "DENIED"
        )
        body = {"errors": [{"code": code, "message": "nothing here"}]}
        return web.json_response(body, status=answers.get(request.match_info["name"], 404))

    async def ping(_: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/v2/", ping)
    app.router.add_route("*", "/v2/{name:.+}/manifests/{tag}", manifest)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"{host}:{port}", answers
    await runner.cleanup()


async def test_registry_error_message_is_kept(dockerd: Dockerd, registry: tuple[str, dict[str, int]]) -> None:
    address, answers = registry
    real = DockerClient(str(dockerd.socket), LOGS, pull_limits=LOCAL)
    answers["secret"] = 403
    with pytest.raises((Refused, Gone), match=r"manifest|not found"):
        await real.pull(f"{address}/unknown:1")
    with pytest.raises((Refused, Gone), match=r"denied|nothing here"):
        await real.pull(f"{address}/secret:1")
    real.close()


async def test_exec_output_is_truncated_to_its_beginning(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    identity = await started(real, uid, IGNORES_SIGTERM)
    chatty = await real.exec(identity, ("sh", "-c", "yes | head -c 1000000; echo end >&2; exit 4"), 20)
    assert (chatty.exit_code, len(chatty.output), chatty.output[:4]) == (4, MAX_OUTPUT_BYTES, "y\ny\n")
    both = await real.exec(identity, ("sh", "-c", "echo out; echo err >&2; printf '\\377'"), 10)
    assert sorted(both.output) == sorted("out\nerr\n\ufffd")
    partly = await real.exec(identity, ("sh", "-c", "echo begun; sleep 60"), 1)
    assert partly == ExecResult(None, "begun\n")
    real.close()


async def test_private_registry_accepts_valid_credentials_only(dockerd: Dockerd, tmp_path: Path) -> None:
    real = DockerClient(str(dockerd.socket), LOGS, pull_limits=LOCAL)
    right = Credential(registry_of_debian.USER, registry_of_debian.PASSWORD)
    with registry_of_debian.running_registry(tmp_path) as address:
        name = f"{address}/private/toolbox:1"
        client = dockerd.client()
        client.tag(images.TOOLBOX, name.rpartition(":")[0], "1")
        output = list(client.push(name, stream=True, decode=True, auth_config=right._asdict()))
        assert not [line for line in output if "error" in line]
        client.remove_image(name)
        client.close()
        for wrong in (None, Credential("tester", "guess")):
            with pytest.raises((Refused, Gone), match=r"no basic auth credentials|unauthorized|denied"):
                await real.pull(name, wrong)
        with pytest.raises(Gone):
            await real.image_id(name)
        await real.pull(name, right)
        assert await real.image_id(name)
    real.close()


async def test_unknown_runtime_is_rejected_by_name(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    with pytest.raises(Refused, match="gvisor"):
        await real.create(replace(sandbox(uid), runtime="gvisor"))
    identity = await real.create(replace(sandbox(uid), runtime="runc"))
    assert inspected(dockerd, identity)["HostConfig"]["Runtime"] == "runc"
    real.close()


@dataclass(frozen=True, slots=True)
class Process:
    environment: set[str]
    directory: str
    oom_score_adj: str
    output: str
    hostname: str
    namespaces: tuple[str, str]


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def inspected(dockerd: Dockerd, identity: str) -> dict[str, Any]:
    client = dockerd.client()
    actual: dict[str, Any] = client.inspect_container(identity)
    client.close()
    return actual


def namespace(pid: int, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def read_process(pid: int) -> Process:
    root = Path(f"/proc/{pid}")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (root / "comm").read_text().startswith("runc"):  # Docker says "started" a moment before the program runs
        assert time.monotonic() < deadline
        time.sleep(0.005)
    path = root / "root/data/said"
    return Process(
        environment=set((root / "environ").read_text().split("\0")),
        directory=str((root / "cwd").readlink()),
        oom_score_adj=(root / "oom_score_adj").read_text().strip(),
        output=path.read_text() if path.exists() else "",
        hostname=(root / "root/etc/hostname").read_text().strip(),
        namespaces=(str((root / "ns/net").readlink()), str((root / "ns/ipc").readlink())),
    )


async def test_resource_limits_environment_and_mounts_reach_the_container(
    dockerd: Dockerd, uid: str, tmp_path: Path
) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    network = await running_sandbox(real, uid)
    (tmp_path / "said").write_text("hello")
    spec = replace(
        container(uid, await real.image_id(images.TOOLBOX), network, IGNORES_SIGTERM),
        environment=("A=1 2", "B="),
        working_dir="/tmp",
        binds=(f"{tmp_path}:/data:ro",),
        cpu_shares=204,
        cpu_quota=1_000,
        memory=8 << 20,
        oom_score_adj=999,
    )
    identity = await real.create(spec)
    await real.start(identity)
    pid = (await real.inspect(identity)).pid
    here = read_process(pid)
    assert {"A=1 2", "B="} <= here.environment
    assert (here.directory, here.oom_score_adj, here.output, here.hostname) == ("/tmp", "999", "hello", "web")
    under = read_process((await real.inspect(network)).pid)
    assert here.namespaces == under.namespaces
    client = dockerd.client()
    config = client.inspect_container(identity)["HostConfig"]
    client.close()
    assert (config["Memory"], config["MemorySwap"], config["CpuQuota"]) == (8 << 20, 8 << 20, 1_000)
    assert config["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "20000", "max-file": "2"}}
    assert config["RestartPolicy"]["Name"] in {"", "no"}
    real.close()


async def test_security_options_reach_the_container(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    image = await real.image_id(images.TOOLBOX)
    assert await real.image_user(image) == ""
    box = await real.create(replace(sandbox(uid), sysctls=(("net.ipv4.ip_unprivileged_port_start", "80"),)))
    await real.start(box)
    rights = SecurityOptions(
        user="1000:1001",
        groups=(7, 8),
        cap_add=("NET_ADMIN",),
        cap_drop=("ALL",),
        read_only=True,
        masked_paths=(),
        options=("no-new-privileges", "seccomp=unconfined"),
    )
    identity = await real.create(replace(container(uid, image, box, IGNORES_SIGTERM), security=rights))
    await real.start(identity)
    pid = (await real.inspect(identity)).pid
    read_process(pid)
    reported = dict(line.split(":\t", 1) for line in proc(pid, "status").splitlines())
    assert (reported["Uid"].split()[1], reported["Gid"].split()[1], reported["Groups"].split()) == (
        "1000",
        "1001",
        ["7", "8", "1001"],
    )
    assert int(reported["CapBnd"], 16) == 1 << 12
    assert (reported["NoNewPrivs"], reported["Seccomp"]) == ("1", "0")
    assert " /proc/sys " not in proc(pid, "mountinfo")
    assert re.search(r" / / ro,", proc(pid, "mountinfo"))
    assert "net.ipv4.ip_unprivileged_port_start" in json.dumps(inspected(dockerd, box)["HostConfig"]["Sysctls"])
    real.close()


async def test_privileged_container_runs_or_reports_why_not(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    box = await running_sandbox(real, uid)
    spec = container(uid, await real.image_id(images.TOOLBOX), box, IGNORES_SIGTERM)
    identity = await real.create(replace(spec, security=SecurityOptions(privileged=True)))
    assert inspected(dockerd, identity)["HostConfig"]["Privileged"]
    try:
        await real.start(identity)
        assert (await real.inspect(identity)).running
    except Refused:  # a machine that itself lacks capabilities cannot give them, and Docker says so
        assert "operation not permitted" in (await real.inspect(identity)).error.lower()
        assert (await real.inspect(identity)).exited
    real.close()


async def test_container_shares_the_process_namespace_of_another(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    network = await running_sandbox(real, uid)
    image = await real.image_id(images.TOOLBOX)
    first = await real.create(container(uid, image, network, IGNORES_SIGTERM))
    await real.start(first)
    guest = replace(
        container(uid, image, network, IGNORES_SIGTERM), name=f"k8s_guest_web_red_{uid}_0", pid=f"container:{first}"
    )
    second = await real.create(guest)
    await real.start(second)
    pids = [(await real.inspect(container_id)).pid for container_id in (first, second)]
    assert namespace(pids[0], "pid") == namespace(pids[1], "pid")
    real.close()


async def test_container_logs_are_rotated(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    identity = await started(real, uid, ("sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done"))
    log = Path((await until(real, identity, lambda runtime_container: not runtime_container.running)).log_path)
    logs = sorted(log.parent.glob(f"{log.name}*"))
    assert [path.name for path in logs] == [log.name, f"{log.name}.1"]
    assert all(path.stat().st_size < 2 * LOGS.max_bytes for path in logs)
    real.close()


async def test_image_with_two_names_is_removed_with_both(dockerd: Dockerd) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    await add_image(real, "podlane/first:1", "podlane/second:1")
    identity = await real.image_id("podlane/first:1")
    [image] = [stored_image for stored_image in await real.list_images() if stored_image.id == identity]
    assert sorted(image.names) == ["podlane/first:1", "podlane/second:1"]
    await real.remove_image(image)
    assert identity not in {stored_image.id for stored_image in await real.list_images()}
    assert Path(await real.root_dir()) == dockerd.root / "data"
    real.close()


async def test_container_stats_report_its_usage(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    work = "head -c 3000000 /dev/zero > /tmp/written; echo done; exec tail -f /dev/null"
    identity = await started(real, uid, ("sh", "-c", work))
    seen = await until(
        real,
        identity,
        lambda runtime_container: (
            bool(runtime_container.log_path) and disk.log_usage(runtime_container.log_path)[0] > 0
        ),
    )
    written = await real.writable_layer_sizes(uid)
    assert written[identity] >= 3_000_000
    assert sorted(written) == sorted(runtime_container.id for runtime_container in await real.list_pod_containers(uid))
    size, inodes = disk.directory_usage(Path(seen.layer))
    assert size >= 3_000_000
    assert inodes > 1
    assert 0 < collector.working_set_bytes(seen.pid) < 1 << 30
    assert collector.task_count(seen.pid) == 1
    await real.remove(identity)
    assert collector.working_set_bytes(seen.pid) == collector.task_count(seen.pid) == 0
    real.close()


async def test_oom_killed_container_is_distinguished_from_a_failed_one(dockerd: Dockerd, uid: str) -> None:
    """Once in a while a busy containerd loses the kernel's notice: the group is gone before it is read."""
    real = DockerClient(str(dockerd.socket), LOGS)
    network = await running_sandbox(real, uid)
    greedy = ("sh", "-c", "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done")
    reported = []
    for number in range(8):
        spec = container(uid, await real.image_id(images.TOOLBOX), network, greedy, number)
        identity = await real.create(replace(spec, memory=8 << 20))
        await real.start(identity)
        seen = await until(real, identity, lambda runtime_container: not runtime_container.running)
        assert seen.exit_code == 137
        reported.append(seen.oom_killed)
        if seen.oom_killed:
            break
    assert reported[-1], reported
    real.close()


async def test_containers_of_another_agent_are_not_listed(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    spec = sandbox(uid)
    foreign = {key: value for key, value in spec.labels.items() if key != label.ATTEMPT}
    identity = await real.create(replace(spec, labels=foreign))
    assert uid not in await real.list_pods()
    await real.remove(identity)
    real.close()


async def test_sandbox_network_and_resolv_conf_are_not_managed_by_docker(
    dockerd: Dockerd, uid: str, tmp_path: Path
) -> None:
    """Only then Docker does not execute itself inside of the namespace, longer than the sandbox takes to start."""
    real = DockerClient(str(dockerd.socket), LOGS)
    network = await running_sandbox(real, uid)
    spec = container(uid, await real.image_id(images.TOOLBOX), network, IGNORES_SIGTERM)
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.53\n")
    identity = await real.create(replace(spec, binds=(f"{resolver}:/etc/resolv.conf",)))
    await real.start(identity)
    client = dockerd.client()
    reported = client.inspect_container(network)["NetworkSettings"]
    client.close()
    assert (reported["SandboxID"], reported["Networks"]) == ("", {})
    pids = [(await real.inspect(container_id)).pid for container_id in (network, identity)]
    box, inside = (os.readlink(f"/proc/{pid}/ns/net") for pid in pids)
    assert box == inside != os.readlink("/proc/self/ns/net")
    links = json.loads(run("nsenter", f"--net=/proc/{pids[0]}/ns/net", "ip", "-json", "address"))
    assert [(link["ifname"], link["addr_info"][0]["local"]) for link in links] == [("lo", "127.0.0.1")]
    assert "UP" in links[0]["flags"]
    assert proc(pids[1], "root/etc/hostname") == "web\n"
    resolver.write_text("nameserver 192.0.2.54\n")
    assert proc(pids[1], "root/etc/resolv.conf") == "nameserver 192.0.2.54\n"
    await real.remove(identity)
    await real.remove(network)
    real.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory with shared mount propagation."""
    (tmp_path / "later").mkdir()
    run("mount", "--bind", str(tmp_path), str(tmp_path))
    run("mount", "--make-shared", str(tmp_path))
    yield tmp_path
    mounts.unmount_all(tmp_path)


async def test_host_to_container_mount_propagation_is_applied(dockerd: Dockerd, uid: str, shared: Path) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    network = await running_sandbox(real, uid)
    spec = container(uid, await real.image_id(images.TOOLBOX), network, IGNORES_SIGTERM)
    identity = await real.create(replace(spec, binds=(f"{shared}:/follows:ro,rslave", f"{shared}:/stays")))
    await real.start(identity)
    pid = (await real.inspect(identity)).pid
    read_process(pid)
    mounts.mount("tmpfs", "tmpfs", shared / "later")
    points = [line.split(" ")[4] for line in proc(pid, "mountinfo").splitlines()]
    assert "/follows/later" in points
    assert "/stays/later" not in points
    await real.remove(identity)
    await real.remove(network)
    real.close()


async def test_bidirectional_mount_propagation_is_applied(dockerd: Dockerd, uid: str, shared: Path) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    network = await running_sandbox(real, uid)
    spec = container(uid, await real.image_id(images.TOOLBOX), network, IGNORES_SIGTERM)
    may_mount = replace(spec, security=SecurityOptions(cap_add=("SYS_ADMIN",), options=("seccomp=unconfined",)))
    identity = await real.create(replace(may_mount, binds=(f"{shared}:/both:rshared", f"{shared}:/own")))
    await real.start(identity)
    for path in ("/both/later", "/own/later"):
        exec_result = await real.exec(identity, ("mount", "-t", "tmpfs", "tmpfs", path), DEADLINE_SECONDS)
        assert exec_result.exit_code == 0, exec_result
    assert [point for point in mounts.mount_points(shared) if point != shared] == [shared / "later"]
    private = shared.parent
    with pytest.raises(Refused, match="not a shared mount"):
        await real.start(await real.create(replace(spec, name=f"{spec.name}9", binds=(f"{private}:/m:rshared",))))
    await real.remove(identity)
    await real.remove(network)
    real.close()


async def test_driver_reconnects_after_docker_restarts() -> None:
    daemon = Dockerd(Path(f"/tmp/podlane-dockerd-{os.getpid()}-2"))
    daemon.root.mkdir()
    process = daemon.start()
    real = DockerClient(str(daemon.socket), LOGS)
    connected: asyncio.Queue[None] = asyncio.Queue()
    following = asyncio.create_task(real.watch_events(lambda _: None, lambda: connected.put_nowait(None)))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await connected.get()
            assert await real.version()
            process.terminate()
            await asyncio.to_thread(process.wait)
            with pytest.raises(NotReady, match="does not answer"):
                await real.version()
            process = await asyncio.to_thread(daemon.start)
            await connected.get()
            assert await real.version()
    finally:
        following.cancel()
        real.close()
        process.terminate()
        process.wait()
        shutil.rmtree(daemon.root)


async def test_hanging_docker_is_not_ready_and_fails_no_exec(dockerd: Dockerd, uid: str) -> None:
    real = DockerClient(str(dockerd.socket), LOGS, timeout_seconds=1)
    identity = await started(real, uid, IGNORES_SIGTERM)
    daemon = psutil.Process(int((dockerd.root / "pid").read_text()))
    daemon.suspend()
    try:
        with pytest.raises(NotReady, match="does not answer"):
            await real.version()
        with pytest.raises(NotReady, match="does not answer"):
            await real.exec(identity, ("true",), 0.1)
        begun = asyncio.create_task(real.exec(identity, ("true",), 0.5))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(begun), 1.0)
    finally:
        daemon.resume()
    assert await begun == ExecResult(0), "its time began when Docker came back"
    assert await real.exec(identity, ("true",), DEADLINE_SECONDS) == ExecResult(0)
    real.close()


async def test_missing_docker_is_not_ready(tmp_path: Path) -> None:
    real = DockerClient(str(tmp_path / "docker.sock"), LOGS)
    with pytest.raises(NotReady, match="does not answer"):
        await real.version()
    with pytest.raises(NotReady, match="does not answer"):
        await real.exec("any", ("true",), 5)
    real.close()


async def test_newest_supported_api_version_is_used(dockerd: Dockerd) -> None:
    real = DockerClient(str(dockerd.socket), LOGS)
    assert await real.version()
    offered = run("docker", "-H", f"unix://{dockerd.socket}", "version", "--format", "{{.Server.APIVersion}}").strip()
    assert real._api_client().api_version == offered
    real.close()


async def test_too_old_docker_is_reported(tmp_path: Path) -> None:
    async def version(_: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.40", "Version": "19.3.0"})

    app = web.Application()
    app.router.add_get("/version", version)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "docker.sock")).start()
    old = DockerClient(str(tmp_path / "docker.sock"), LOGS)
    with pytest.raises(NotReady, match=r"Docker's API is 1.40; 1.41 \(Docker 20.10\) or newer is needed"):
        await old.version()
    old.close()
    await runner.cleanup()
