"""What of dead containers and unused images goes, and in which order. Pure; facts: kubelet's garbage collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from node_agent.observed import SANDBOX_ID, Container, PodContainers, group

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """How many dead containers stay for each container of a pod, one at least: they hold logs and restart counts.

    One that ended less than `least_age` ago stays in any case.
    """

    per_container: int = 1
    least_age: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """From `high` percent of the file system in use, images go until it is no more than `low` percent.

    An image that came to the host less than `least_age` ago stays. One that has not been used for longer than
    `most_age` goes however much room there is, unless `most_age` is 0.
    """

    high: int = 85
    low: int = 80
    least_age: timedelta = timedelta(minutes=2)
    most_age: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Space:
    """A file system: bytes and inodes, those that are free for everybody, and all."""

    available: int
    capacity: int
    inodes_free: int
    inodes: int
    reserved: int = 0
    """Bytes that are free for root alone."""

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self.capacity - self.available - self.reserved

    @property
    def percent_used(self) -> int:
        """How much is not available, in whole percent, rounded up as kubelet does."""
        return 100 - self.available * 100 // self.capacity if self.capacity else 100

    def excess(self, percent: int) -> int:
        """How many bytes have to go so that no more than so many percent are in use."""
        return max(self.capacity * (100 - percent) // 100 - self.available, 0)


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its id; `names` are its tags, or its digests where it has none."""

    id: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """When an image was first seen here, and when a container last had it (None: never)."""

    detected: datetime
    used: datetime | None = None


def dead_containers(
    found: Iterable[Container], policy: ContainerPolicy, now: datetime, pods: Collection[str]
) -> tuple[Container, ...]:
    """Containers first, then sandboxes, of these pods (UIDs) only: what other pods left is swept with their network.

    The newest sandbox of a pod stays, and every sandbox that still has a container.
    """
    by_pod: dict[str, list[Container]] = {}
    for one in found:
        by_pod.setdefault(one.uid, []).append(one)
    pods_here = [group(by_pod[uid]) for uid in sorted(by_pod.keys() & set(pods))]
    containers = [one for pod in pods_here for one in _superfluous(pod, policy) if _is_old(one, policy, now)]
    going = {one.id for one in containers}
    sandboxes = [one for pod in pods_here for one in _empty_sandboxes(pod, going) if _is_old(one, policy, now)]
    return (*containers, *sandboxes)


def _superfluous(pod: PodContainers, policy: ContainerPolicy) -> list[Container]:
    ended = ([one for one in history if one.ended] for history in pod.containers.values())
    return [one for dead in ended for one in dead[policy.per_container :]]


def _empty_sandboxes(pod: PodContainers, going: Collection[str]) -> list[Container]:
    inside = {
        one.labels.get(SANDBOX_ID) for history in pod.containers.values() for one in history if one.id not in going
    }
    return [one for one in pod.sandboxes[1:] if one.ended and one.id not in inside]


def _is_old(one: Container, policy: ContainerPolicy, now: datetime) -> bool:
    return one.ended_at is None or now - one.ended_at >= policy.least_age


def uses(known: Mapping[str, Use], images: Iterable[Image], in_use: Collection[str], now: datetime) -> dict[str, Use]:
    """What is known of the images that are here now."""
    before = {image.id: known.get(image.id, Use(now)) for image in images}
    return {name: Use(use.detected, now) if name in in_use else use for name, use in before.items()}


def removable_images(
    images: Iterable[Image], known: Mapping[str, Use], pinned: Collection[str], policy: ImagePolicy, now: datetime
) -> tuple[Image, ...]:
    """Images that no container has, those first that have not been used for longest, or never.

    `known` is what `uses` says now; `pinned` are ids of images that stay.
    """
    free = [image for image in images if image.id not in pinned and known[image.id].used != now]
    old = [image for image in free if now - known[image.id].detected >= policy.least_age]
    return tuple(sorted(old, key=lambda image: (known[image.id].used or LONG_AGO, known[image.id].detected, image.id)))


def outdated_images(
    removable: Iterable[Image], known: Mapping[str, Use], policy: ImagePolicy, now: datetime
) -> tuple[Image, ...]:
    """Of the images that may go those that nobody has used for too long, or ever since they came."""
    if not policy.most_age:
        return ()
    return tuple(
        image for image in removable if now - (known[image.id].used or known[image.id].detected) > policy.most_age
    )
