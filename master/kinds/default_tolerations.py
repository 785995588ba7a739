"""The tolerations that every pod gets when it is made, as DefaultTolerationSeconds of Kubernetes gives them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from api.core.placement import MEMORY_PRESSURE, NOT_READY, UNREACHABLE, Toleration
from api.core.pod import Pod
from api.core.resources import qos_class

TOLERATION_SECONDS = 300


def with_tolerations(pod: Pod) -> Pod:
    """A pod stays for five minutes on a node that is unwell; one that requests something may come to one that is short
    of memory. What the pod itself says of such a taint counts instead.
    """
    found = (*pod.spec.tolerations, *_missing(pod))
    return pod if found == pod.spec.tolerations else replace(pod, spec=replace(pod.spec, tolerations=found))


def _missing(pod: Pod) -> Iterator[Toleration]:
    for key in (NOT_READY, UNREACHABLE):
        if not _speaks_of(pod, key, "NoExecute"):
            yield Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=TOLERATION_SECONDS)
    asks = qos_class((*pod.spec.init_containers, *pod.spec.containers)) != "BestEffort"
    if asks and not _speaks_of(pod, MEMORY_PRESSURE, "NoSchedule"):
        yield Toleration(key=MEMORY_PRESSURE, operator="Exists", effect="NoSchedule")


def _speaks_of(pod: Pod, key: str, effect: str) -> bool:
    return any(row.key in ("", key) and row.effect in ("", effect) for row in pod.spec.tolerations)
