"""Lists of pods as the agent answers them: those it knows, and those that run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from node_agent.stats.figures import KnownPod


def known(pods: Iterable[KnownPod]) -> bytes:
    """A PodList of whole pods."""
    return _list([replace(one.pod, api_version="", kind="") for one in pods])


def running(pods: Iterable[KnownPod]) -> bytes:
    """A PodList of the pods that have a running container: names and images are all it tells."""
    return _list([_row(one) for one in pods if any(container.running for container in one.seen.everything)])


def _row(known: KnownPod) -> object:
    meta = known.pod.metadata
    rows = [
        {"name": one.name, "image": one.image_id, "resources": {}}
        for one in known.seen.everything
        if one.running and not one.is_sandbox
    ]
    return {
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {"containers": rows or None},
        "status": {},
    }


def _list(items: Sequence[object]) -> bytes:
    return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
