"""Writes pod statuses to the API server: the newest only, and the last one before deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from api.client.client import ApiError, Client, ClientError, Conflict, Invalid, NotFound
from api.core.pod import FINAL_PHASES, Pod, PodStatus
from api.meta.types import Condition, ObjectMeta
from api.validation.static_pods import is_mirror
from node_agent.pods.conditions import RESIZE_CONDITIONS, WRITTEN_CONDITIONS
from node_agent.pods.status import merge_status
from reconcile.errors import NotReady
from reconcile.listeners import Listeners
from reconcile.loop import Loop, LoopTiming

RECHECK_SECONDS = 10.0
"""Time between two comparisons of the statuses with those on the API server."""

MERGED_LISTS = ("hostIPs", "podIPs")
"""Lists that a strategic merge patch would join with the list on the API server."""


class StatusManager:
    """The newest status of each pod, by its UID on this node (kubelet: status manager).

    A status is written when it changes, and again when another client overwrites it. It is stored, but not written,
    while the API server has no object of the pod. The status of a static pod is also not written before it is restored,
    because its mirror pod may have start times and past exits that are recorded nowhere else.

    `api_pods` returns the pods on the API server by their UID on this node; a mirror pod has another UID there.
    `changed` notifies after each new status, `pod_finished` when it is final.
    """

    def __init__(self, client: Client, api_pods: Callable[[], Mapping[str, Pod]]) -> None:
        self.changed = Listeners()
        self.pod_finished = Listeners()
        self.loop = Loop("statuses", self._write, LoopTiming(resync=RECHECK_SECONDS, backoff_max=5.0))
        self._client = client
        self._api_pods = api_pods
        self._pods: dict[str, Pod] = {}
        self._pending: dict[str, None] = {}
        self._restored: set[str] = set()
        self._written: dict[str, Pod] = {}
        self._to_delete: dict[str, ObjectMeta] = {}

    def set_status(self, pod: Pod) -> None:
        """Store the status of a pod. It is written as soon as the API server accepts it."""
        uid = pod.metadata.uid
        self._pods[uid] = pod
        self._pending[uid] = None
        self.loop.wake()
        self.changed.notify()
        if pod.status.phase in FINAL_PHASES:
            self.pod_finished.notify()

    def adopt(self, pod: Pod) -> None:
        """Take over the status that the API server has, so that it is written again if another client changes it."""
        self._pods.setdefault(pod.metadata.uid, pod)

    def is_restored(self, uid: str) -> bool:
        """Return whether the status of a static pod was restored from its mirror pod."""
        return uid in self._restored

    def set_restored(self, uid: str) -> None:
        """Permit writes of the status of a static pod, because it was restored from its mirror pod."""
        self._restored.add(uid)
        self.loop.wake()

    def known_uids(self) -> frozenset[str]:
        """Return the UIDs of the pods that have a status here."""
        return frozenset(self._pods)

    def delete_pod(self, pod: Pod) -> None:
        """Delete the object of a pod that is terminated, as soon as its last status is written."""
        self._to_delete[pod.metadata.uid] = pod.metadata
        self.loop.wake()

    def is_deleting(self, uid: str) -> bool:
        """Return whether the object of a terminated pod is still to be deleted."""
        return uid in self._to_delete

    def forget(self, uid: str) -> None:
        """Forget a pod that is terminated and has no object that is to be deleted."""
        self._pods.pop(uid, None)
        self._pending.pop(uid, None)
        self._written.pop(uid, None)
        self._restored.discard(uid)

    async def _write(self) -> None:
        """Write all pending statuses, then delete objects. A failure does not stop the others.

        Raises NotReady after a failure, so that the pass is repeated.
        """
        api_pods = self._api_pods()
        # The copy of a written pod is dropped when the informer has received the same version or a newer one.
        self._written = {uid: pod for uid, pod in self._written.items() if self._newest(uid, api_pods.get(uid)) is pod}
        self._pending |= {uid: None for uid in self._pods if self._is_overwritten(uid, api_pods.get(uid))}
        writable = [uid for uid in self._pending if self._may_write(uid, api_pods.get(uid))]
        failures: list[str] = []
        for uid in writable:
            failures += await self._attempt(self._write_status(uid))
        for uid in self._to_delete.keys() - (self._pending.keys() & set(writable)):
            failures += await self._attempt(self._delete(uid))
        if failures:
            raise NotReady(failures[0] if len(failures) == 1 else f"{failures[0]} (and {len(failures) - 1} more)")

    def _may_write(self, uid: str, api_pod: Pod | None) -> bool:
        return api_pod is not None and (not is_mirror(api_pod) or uid in self._restored)

    def _is_overwritten(self, uid: str, api_pod: Pod | None) -> bool:
        """Return whether another client has changed the status on the API server since the last write."""
        if api_pod is None or api_pod is not self._newest(uid, api_pod):
            return False
        return _with_sorted_conditions(merge_status(self._pods[uid].status, api_pod.status)) != _with_sorted_conditions(
            api_pod.status
        )

    def _newest(self, uid: str, api_pod: Pod | None) -> Pod | None:
        """Return the newer one of the API server's response to the last write and the informer's copy."""
        written = self._written.get(uid)
        if api_pod is None or written is None:
            return api_pod or written
        return api_pod if _revision(api_pod) >= _revision(written) else written

    async def _attempt(self, request: Awaitable[None]) -> list[str]:
        try:
            await request
        except ClientError as error:
            return [str(error)]
        return []

    async def _write_status(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return  # It was forgotten while another status was written.
        api_pod = self._newest(uid, self._api_pods().get(uid)) or pod
        meta = api_pod.metadata
        patch = pod_status_patch(meta.uid, pod.status, api_pod.status)
        try:
            written = await self._client.patch_status_strategically(Pod, meta.name, meta.namespace, patch)
        except ApiError as error:
            if not _is_other_pod(error):
                raise _refusal(meta, error) from None
            self.forget(uid)
            return
        if uid in self._pods:
            self._written[uid] = written
            if self._pods[uid].status is pod.status:
                self._pending.pop(uid, None)

    async def _delete(self, uid: str) -> None:
        meta = self._to_delete[uid]
        try:
            await self._client.delete(Pod, meta.name, meta.namespace, grace_seconds=0, uid=uid)
        except ApiError as error:
            if not _is_other_pod(error):
                raise _refusal(meta, error) from None
        del self._to_delete[uid]
        self.forget(uid)


def _is_other_pod(error: ApiError) -> bool:
    """Return whether the pod was deleted or replaced: 404, 409, or 422 about the UID from older API servers."""
    has_other_uid = isinstance(error, Conflict) and "UID" in str(error)
    return isinstance(error, NotFound) or has_other_uid or (isinstance(error, Invalid) and "metadata.uid" in str(error))


def _refusal(meta: ObjectMeta, error: ApiError) -> ClientError:
    return ClientError(f"the API server refused pod {meta.namespace}/{meta.name}: {error}")


def _revision(pod: Pod) -> int:
    return int(pod.metadata.resource_version)


def _with_sorted_conditions(status: PodStatus) -> PodStatus:
    return msgspec.structs.replace(
        status, conditions=tuple(sorted(status.conditions, key=lambda condition: condition.type))
    )


def pod_status_patch(uid: str, status: PodStatus, current: PodStatus) -> dict[str, Any]:
    """Return a strategic merge patch with all fields of a status that this agent owns, and no others.

    The UID in the patch makes the API server refuse it for another pod of the same name. `current` is the status on the
    API server. A directive to replace a list is only sent for a list that exists: older API servers would take the
    directive for an item (Kubernetes 1.20: 422).
    """
    conditions = tuple(condition for condition in status.conditions if condition.type in WRITTEN_CONDITIONS)
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(status, conditions=()))
    types = {condition.type for condition in conditions}
    ended = [condition.type for condition in current.conditions if condition.type in RESIZE_CONDITIONS]
    fields["conditions"] = [_condition(condition) for condition in conditions]
    fields["conditions"] += [{"$patch": "delete", "type": name} for name in ended if name not in types]
    fields["$setElementOrder/conditions"] = [{"type": condition.type} for condition in conditions]
    for name in _OWNED_FIELDS - fields.keys():
        fields[name] = None
    current_fields = msgspec.to_builtins(current)
    for name in MERGED_LISTS:
        if current_fields.get(name):
            fields[name] = [{"$patch": "replace"}, *(fields[name] or ())]
    return {"metadata": {"uid": uid}, "status": fields}


def _condition(condition: Condition) -> dict[str, Any]:
    """Return the condition with null for each missing field, so that no field of the previous condition stays."""
    fields: dict[str, Any] = msgspec.to_builtins(condition)
    return {field.encode_name: fields.get(field.encode_name) for field in msgspec.structs.fields(Condition)}


FOREIGN_FIELDS = frozenset(("nominatedNodeName", "resize", "resourceClaimStatuses"))
"""Fields of the status that other clients own."""

_OWNED_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(PodStatus)) - FOREIGN_FIELDS
