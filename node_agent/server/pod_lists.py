"""Lists of pods as the agent answers them: those it knows, and those that run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from api.objects import Pod
from node_agent.observed import PodContainers


def known(pods: Iterable[Pod]) -> bytes:
    """A PodList of whole pods."""
    items = [replace(pod, api_version="", kind="") for pod in pods]
    return _list(items)


def running(pods: Iterable[tuple[Pod, PodContainers]]) -> bytes:
    """A PodList of the pods that have a running container: names and images are all it tells."""
    return _list([_row(pod, seen) for pod, seen in pods if any(one.running for one in seen.everything)])


def _row(pod: Pod, seen: PodContainers) -> object:
    meta = pod.metadata
    rows = [
        {"name": one.name, "image": one.image_id, "resources": {}}
        for one in seen.everything
        if one.running and not one.is_sandbox
    ]
    return {
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {"containers": rows or None},
        "status": {},
    }


def _list(items: list[object] | list[Pod]) -> bytes:
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
