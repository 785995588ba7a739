"""Garbage collection of images, against a Docker in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config import Settings
from node_agent.docker.client import StoredImage
from node_agent.host import HostInfo
from node_agent.images import gc
from node_agent.images.gc import ImageGC, ImagePolicy, ImageUse, removable_images, update_uses
from node_agent.network.sdn import SdnNetwork
from node_agent.runtime.container_gc import ContainerGC
from node_agent.runtime.log_links import LogDirs, LogLinker, container_link
from node_agent.runtime.spec import ContainerInputs, container_config, sandbox_config
from node_agent.stats.model import FilesystemStats
from reconcile.config_file import InvalidConfig, merge
from reconcile.errors import NotReady
from tests.testbed.docker.fake import AgentKilled, FakeDocker
from tests.testbed.fault_injection import INJECTOR
from tests.testbed.node.events import FakeEventRecorder
from tests.unit.node_agent.examples import NOW, UID, make_pod
from tests.unit.node_agent.fake_host import FakeSdnDaemon

WEB = make_pod()
HOST = HostInfo("/nowhere", 8 << 30, -1000)


class GcHost:
    """A host with the garbage collectors and the log linker of an agent."""

    def __init__(self, root: Path, network: SdnNetwork) -> None:
        self.root, self.network = root, network
        self.docker = FakeDocker("pause", "toolbox", "unused:1")
        self.pods = {UID}
        self.events = FakeEventRecorder()

    def settings(self, high: int = 100, low: int = 100, max_age: float = 0) -> Settings:
        """Return settings in which the disk counts as too full from `high` percent on."""
        return Settings(
            node_name="node-1",
            node_ip="10.245.2.3",
            state_dir=str(self.root),
            pause_image="pause",
            pod_logs_dir=str(self.root / "pods"),
            container_logs_dir=str(self.root / "containers"),
            image_gc_high_threshold_percent=high,
            image_gc_low_threshold_percent=low,
            image_minimum_gc_age_seconds=0,
            image_maximum_gc_age_seconds=max_age,
        )

    def image_gc(self, high: int = 100, low: int = 100, max_age: float = 0) -> ImageGC:
        """Return the image garbage collector of a restarted agent."""
        return ImageGC(self.settings(high, low, max_age), self.docker, self.events)

    def container_gc(self) -> ContainerGC:
        """Return the container garbage collector of a restarted agent."""
        return ContainerGC(self.settings(), self.docker, self.network, self.pods)

    def log_linker(self) -> LogLinker:
        """Return the log linker of a restarted agent."""
        return LogLinker(self.settings(), self.docker)

    def event_reasons(self) -> list[str]:
        return [reason for reason, _, _ in self.events.events]

    async def run(self, restarts: int = 0) -> str:
        """Start a container, and its sandbox if there is none."""
        if not self.docker.find("POD"):
            await self.docker.start(await self.docker.create(sandbox_config(WEB, "pause", 0, HOST)))
        [sandbox] = self.docker.find("POD")
        image = await self.docker.image_id("toolbox")
        spec = container_config(WEB, WEB.spec.containers[0], ContainerInputs(image, sandbox.id, restarts), HOST)
        identity = await self.docker.create(spec)
        await self.docker.start(identity)
        return identity

    def links(self) -> dict[str, str]:
        """Return the links and their targets, by path below the root."""
        links = [path for path in self.root.rglob("*.log") if path.is_symlink()]
        return {str(path.relative_to(self.root)): str(path.readlink()) for path in links}


@pytest.fixture
async def gc_host(tmp_path: Path) -> AsyncIterator[GcHost]:
    async with FakeSdnDaemon().serving(tmp_path / "s"), SdnNetwork(str(tmp_path / "s")) as network:
        yield GcHost(tmp_path, network)


async def test_container_gc_removes_dead_containers_except_the_newest(gc_host: GcHost) -> None:
    for restarts in range(3):
        gc_host.docker.end(await gc_host.run(restarts), 1)
    running = await gc_host.run(3)
    await gc_host.container_gc().collect()
    assert [container.restart_count for container in gc_host.docker.find("main")] == [2, 3]
    gc_host.pods.clear()
    gc_host.docker.end(running, 1)
    await gc_host.container_gc().collect()
    assert len(gc_host.docker.find("main")) == 2, "of a pod without a worker nothing goes here"


async def test_image_gc_runs_only_above_its_threshold_and_keeps_used_images(gc_host: GcHost) -> None:
    identity = await gc_host.run()
    await gc_host.image_gc(high=100).collect()
    assert gc_host.docker.images == {"pause", "toolbox", "unused:1"}
    gc_host.docker.end(identity, 0)
    await gc_host.image_gc(high=0, low=0).collect()
    assert gc_host.docker.images == {"pause", "toolbox"}, "a dead container needs its image too"
    for container in [*gc_host.docker.find("main"), *gc_host.docker.find("POD")]:
        await gc_host.docker.remove(container.id)
    await gc_host.image_gc(high=0, low=0).collect()
    assert gc_host.docker.images == {"pause"}


async def test_image_gc_removes_no_more_images_than_needed(gc_host: GcHost) -> None:
    await gc_host.image_gc(high=0, low=0).collect()
    assert gc_host.docker.images == {"pause"}
    gc_host.docker.images |= {"toolbox", "unused:1"}
    full = Settings(
        node_name="n",
        node_ip="1.2.3.4",
        state_dir=str(gc_host.root),
        pause_image="pause",
        image_gc_high_threshold_percent=0,
        image_gc_low_threshold_percent=0,
    )
    await ImageGC(full, gc_host.docker, gc_host.events).collect()
    assert gc_host.docker.images == {"pause", "toolbox", "unused:1"}, "they have just come"


async def test_image_gc_removes_images_unused_for_too_long(gc_host: GcHost) -> None:
    await gc_host.run()
    await gc_host.image_gc(max_age=3600).collect()
    assert gc_host.docker.images == {"pause", "toolbox", "unused:1"}
    await gc_host.image_gc(max_age=1e-6).collect()
    assert gc_host.docker.images == {"pause", "toolbox"}
    assert not gc_host.events.events


async def test_image_gc_reports_a_disk_that_stays_full(gc_host: GcHost) -> None:
    image_gc = gc_host.image_gc(high=0, low=0)
    await image_gc.collect()
    [(reason, message, _)] = gc_host.events.events
    assert reason == "FreeDiskSpaceFailed"
    assert message.startswith("Failed to garbage collect required amount of images. Attempted to free ")
    await image_gc.collect()
    assert gc_host.event_reasons() == ["FreeDiskSpaceFailed", "FreeDiskSpaceFailed", "ImageGCFailed"]
    gc_host.docker.trouble = NotReady("Docker is away")
    with pytest.raises(NotReady):
        await image_gc.collect()
    assert gc_host.event_reasons()[-1] == "ImageGCFailed"


async def test_image_gc_removes_every_unused_image_under_pressure(gc_host: GcHost) -> None:
    for restarts in range(2):
        gc_host.docker.end(await gc_host.run(restarts), 1)
    await gc_host.container_gc().collect()
    await gc_host.image_gc().remove_unused_images()
    assert [container.restart_count for container in gc_host.docker.find("main")] == [1]
    assert gc_host.docker.images == {"pause", "toolbox"}


async def test_image_last_use_survives_agent_restart(gc_host: GcHost) -> None:
    identity = await gc_host.run()
    await gc_host.image_gc().collect()
    await gc_host.docker.remove(identity)
    await gc_host.image_gc().collect()
    record = gc.read_image_uses(gc_host.root / "images.json")
    assert record[await gc_host.docker.image_id("toolbox")].used is not None
    assert record[await gc_host.docker.image_id("unused:1")].used is None
    (gc_host.root / "images.json").write_text("{")
    await gc_host.image_gc().collect()
    assert gc.read_image_uses(gc_host.root / "images.json")


async def test_logs_are_linked_and_unlinked_with_their_container(gc_host: GcHost) -> None:
    (gc_host.root / "containers").mkdir()
    foreign = gc_host.root / "containers" / "other.log"
    foreign.symlink_to(gc_host.root)
    first = await gc_host.run()
    by_pod, by_container = f"pods/red_web_{UID}/main/0.log", f"containers/web_red_main-{first}.log"
    for _ in range(2):
        await gc_host.log_linker().update_links()
        assert gc_host.links() == {
            by_pod: f"/var/lib/docker/containers/{first}/{first}-json.log",
            by_container: str(gc_host.root / by_pod),
            "containers/other.log": str(gc_host.root),
        }
    await gc_host.docker.remove(first)
    second = await gc_host.run()
    await gc_host.log_linker().update_links()
    assert gc_host.links()[by_pod].endswith(f"{second}-json.log")
    assert by_container not in gc_host.links()
    await gc_host.docker.remove(second)
    await gc_host.log_linker().update_links()
    assert list(gc_host.links()) == ["containers/other.log"], "what leads somewhere is not ours"
    assert not list((gc_host.root / "pods").iterdir())


async def test_log_links_are_repaired_after_the_agent_was_killed(gc_host: GcHost) -> None:
    async def run_until_killed(steps: int, *, removed_meanwhile: bool) -> int:
        """Kill the garbage collectors after some steps, then restart them. Return the number of steps."""
        identity = await gc_host.run()
        with contextlib.suppress(AgentKilled), INJECTOR.after(steps):
            await gc_host.log_linker().update_links()
            if not removed_meanwhile:
                await gc_host.docker.remove(identity)
                await gc_host.log_linker().update_links()
        total_steps = INJECTOR.acts
        await gc_host.docker.remove(identity)
        await gc_host.log_linker().update_links()
        remaining_links = [path for name in ("pods", "containers") for path in (gc_host.root / name).glob("*")]
        assert not remaining_links, f"killed after {steps} of {total_steps}"
        return total_steps

    total_steps = await run_until_killed(10_000, removed_meanwhile=False)
    assert total_steps > 10
    for number in range(total_steps):
        for removed_meanwhile in (True, False):
            await run_until_killed(number, removed_meanwhile=removed_meanwhile)


async def test_log_link_name_is_truncated_to_the_filesystem_limit(gc_host: GcHost) -> None:
    container = await gc_host.docker.inspect(await gc_host.run())
    long = replace(container, labels={**container.labels, "io.kubernetes.pod.name": "p" * 253})
    name = container_link(LogDirs(Path("/p"), Path("/c")), long).name
    assert len(name) == 255
    assert name.endswith(".log")


def test_image_gc_thresholds_in_wrong_order_are_rejected() -> None:
    document = {"nodeName": "n", "nodeIp": "1.2.3.4", "imageGcLowThresholdPercent": 90}
    with pytest.raises(InvalidConfig, match="imageGcLowThresholdPercent: found 90 above 85"):
        merge(Settings, document, {})


MINUTE = timedelta(minutes=1)


IMAGES = tuple(StoredImage(name, (f"{name}:1",)) for name in ("never", "old", "lately", "inuse", "pinned", "new"))


def uses(now: datetime = NOW) -> dict[str, ImageUse]:
    before = {image.id: ImageUse(NOW - 60 * MINUTE) for image in IMAGES if image.id != "new"}
    before |= {
        "old": ImageUse(NOW - 60 * MINUTE, NOW - 30 * MINUTE),
        "lately": ImageUse(NOW - 60 * MINUTE, NOW - MINUTE),
    }
    return update_uses({**before, "gone": ImageUse(NOW)}, IMAGES, {"inuse"}, now)


def test_image_gc_removes_least_recently_used_first_and_keeps_new_used_and_pinned() -> None:
    order = removable_images(IMAGES, uses(), {"pinned"}, ImagePolicy(), NOW)
    assert [image.id for image in order] == ["never", "old", "lately"]
    later = NOW + 3 * MINUTE
    order = removable_images(IMAGES, update_uses(uses(), IMAGES, set(), later), {"pinned"}, ImagePolicy(), later)
    assert [image.id for image in order] == ["never", "new", "old", "lately", "inuse"]


def test_image_use_record_drops_removed_images_and_keeps_last_use() -> None:
    assert "gone" not in uses()
    assert uses()["inuse"].used == NOW
    assert update_uses(uses(), IMAGES, set(), NOW + MINUTE)["inuse"] == ImageUse(NOW - 60 * MINUTE, NOW)
    assert uses()["new"] == ImageUse(NOW)


@given(st.sets(st.sampled_from([image.id for image in IMAGES])), st.integers(0, 600))
def test_image_gc_never_removes_an_image_in_use(in_use: set[str], minutes: int) -> None:
    now = NOW + minutes * MINUTE
    record = update_uses(uses(), IMAGES, in_use, now)
    assert not in_use & {image.id for image in removable_images(IMAGES, record, (), ImagePolicy(), now)}


@pytest.mark.parametrize(
    ("available", "capacity", "percent"), [(0, 100, 100), (1, 1000, 100), (15, 100, 85), (9, 9, 0)]
)
def test_filesystem_percent_used_counts_unavailable_bytes(available: int, capacity: int, percent: int) -> None:
    assert FilesystemStats(available, capacity, 0, 0).percent_used == percent
