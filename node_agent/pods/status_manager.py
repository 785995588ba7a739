"""Writes pod statuses to the API server: the newest only, and the last one before deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from api.client.client import ApiError, Client, ClientError, Conflict, Invalid, NotFound
from api.core.pod import Pod, PodStatus
from api.meta.types import Condition, ObjectMeta
from node_agent.pods.conditions import WRITTEN_CONDITIONS
from node_agent.pods.status import merge_status
from reconcile.errors import NotReady
from reconcile.loop import Loop, LoopTiming

RECHECK_SECONDS = 10.0
"""Time between two comparisons of what the master shows with what was last said."""

MERGED_LISTS = ("hostIPs", "podIPs")
"""Lists that strategic merge would join with what stands there."""


class StatusManager:
    """`shown` are the pods as the master was last known to have them, by their UID here; that of a mirror pod differs.

    `said` is what was last said of each pod; it is said again when the master shows something else.
    """

    def __init__(self, client: Client, shown: Callable[[], Mapping[str, Pod]]) -> None:
        self.loop = Loop("statuses", self._write, LoopTiming(resync=RECHECK_SECONDS, backoff_max=5.0))
        self._client = client
        self._shown = shown
        self._said: dict[str, tuple[ObjectMeta, PodStatus]] = {}
        self._due: dict[str, None] = {}
        self._written: dict[str, Pod] = {}
        self._ended: dict[str, ObjectMeta] = {}

    def say(self, pod: Pod, status: PodStatus) -> None:
        """The status of a pod has changed."""
        self._said[pod.metadata.uid] = (pod.metadata, status)
        self._due[pod.metadata.uid] = None
        self.loop.wake()

    def said(self) -> frozenset[str]:
        """UIDs of the pods of which something has been said."""
        return frozenset(self._said)

    def end(self, pod: Pod) -> None:
        """Nothing is left of the pod here: its object goes as soon as its last status is written."""
        self._ended[pod.metadata.uid] = pod.metadata
        self.loop.wake()

    def is_ending(self, uid: str) -> bool:
        """Whether the object of a pod of which nothing is left is still to be deleted."""
        return uid in self._ended

    def forget(self, uid: str) -> None:
        """The pod is none of ours any more, and the master does not have it."""
        for held in (self._said, self._due, self._written):
            held.pop(uid, None)

    async def _write(self) -> None:
        """What cannot be written holds up nothing else. Raises NotReady, so that it is tried again."""
        shown = self._shown()
        # What the master shows meanwhile, it need not have said to us as well.
        self._written = {uid: pod for uid, pod in self._written.items() if self._newest(uid, shown.get(uid)) is pod}
        self._due |= {uid: None for uid in self._said if self._is_overwritten(uid, shown.get(uid))}
        failures: list[str] = []
        for uid in tuple(self._due):
            failures += await self._attempt(self._write_status(uid))
        for uid in tuple(self._ended.keys() - self._due.keys()):
            failures += await self._attempt(self._delete(uid))
        if failures:
            raise NotReady(failures[0] if len(failures) == 1 else f"{failures[0]} (and {len(failures) - 1} more)")

    def _is_overwritten(self, uid: str, shown: Pod | None) -> bool:
        """Whether the master shows, after our last write, something else than we said."""
        if shown is None or shown is not self._newest(uid, shown):
            return False
        return _sorted(merge_status(self._said[uid][1], shown.status)) != _sorted(shown.status)

    def _newest(self, uid: str, shown: Pod | None) -> Pod | None:
        """The pod as the master told it last: in its answer to us or, when both are as new, in what it shows."""
        written = self._written.get(uid)
        if shown is None or written is None:
            return shown or written
        return shown if _revision(shown) >= _revision(written) else written

    async def _attempt(self, request: Awaitable[None]) -> list[str]:
        try:
            await request
        except ClientError as error:
            return [str(error)]
        return []

    async def _write_status(self, uid: str) -> None:
        if uid not in self._said:
            return  # It was forgotten while another one was written.
        meta, status = self._said[uid]
        held = self._newest(uid, self._shown().get(uid))
        meta = held.metadata if held is not None else meta
        patch = pod_status_patch(meta.uid, status, held.status if held is not None else status)
        try:
            written = await self._client.patch_status_strategically(Pod, meta.name, meta.namespace, patch)
        except ApiError as error:
            if not _is_another(error):
                raise _about(meta, error) from None
            self.forget(uid)
            return
        if uid in self._said:
            self._written[uid] = written
            if self._said[uid][1] is status:
                self._due.pop(uid, None)

    async def _delete(self, uid: str) -> None:
        meta = self._ended[uid]
        try:
            await self._client.delete(Pod, meta.name, meta.namespace, grace_seconds=0, uid=uid)
        except ApiError as error:
            if not _is_another(error):
                raise _about(meta, error) from None
        del self._ended[uid]
        self.forget(uid)


def _is_another(error: ApiError) -> bool:
    """Whether the pod is gone, or another one has its name: 409, or from older API servers 422 about the UID."""
    other = isinstance(error, Conflict) and "UID" in str(error)
    return isinstance(error, NotFound) or other or (isinstance(error, Invalid) and "metadata.uid" in str(error))


def _about(meta: ObjectMeta, error: ApiError) -> ClientError:
    return ClientError(f"the master refused pod {meta.namespace}/{meta.name}: {error}")


def _revision(pod: Pod) -> int:
    return int(pod.metadata.resource_version)


def _sorted(status: PodStatus) -> PodStatus:
    return msgspec.structs.replace(status, conditions=tuple(sorted(status.conditions, key=lambda row: row.type)))


def pod_status_patch(uid: str, status: PodStatus, held: PodStatus) -> dict[str, Any]:
    """A strategic merge patch that says all that is ours of a status, and nothing of others'.

    The UID in it makes the master refuse it for another pod of the same name. `held` is what it has now: where there
    is no list to replace, older API servers take the word to replace it for an item (Kubernetes 1.20: 422).
    """
    rows = tuple(row for row in status.conditions if row.type in WRITTEN_CONDITIONS)
    said: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(status, conditions=()))
    said["conditions"] = [_condition(row) for row in rows]
    said["$setElementOrder/conditions"] = [{"type": row.type} for row in rows]
    for field in _FIELDS - said.keys():
        said[field] = None
    there = msgspec.to_builtins(held)
    for name in MERGED_LISTS:
        if there.get(name):
            said[name] = [{"$patch": "replace"}, *(said[name] or ())]
    return {"metadata": {"uid": uid}, "status": said}


def _condition(row: Condition) -> dict[str, Any]:
    """The row with nulls for what it does not have, so that nothing of the row before it stays."""
    said: dict[str, Any] = msgspec.to_builtins(row)
    return {field.encode_name: said.get(field.encode_name) for field in msgspec.structs.fields(Condition)}


OTHERS_FIELDS = frozenset(("nominatedNodeName", "resize", "resourceClaimStatuses"))
_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(PodStatus)) - OTHERS_FIELDS
