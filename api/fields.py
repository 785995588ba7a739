"""The fields of a Pod that an environment variable may take its value from (`valueFrom.fieldRef`). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from api.objects import Pod

_BY_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

_FIELDS: Mapping[str, Callable[[Pod], str]] = {
    "metadata.name": lambda pod: pod.metadata.name,
    "metadata.namespace": lambda pod: pod.metadata.namespace,
    "metadata.uid": lambda pod: pod.metadata.uid,
    "spec.nodeName": lambda pod: pod.spec.node_name,
    "spec.serviceAccountName": lambda pod: pod.spec.service_account_name,
    "status.hostIP": lambda pod: pod.status.host_ip,
    "status.hostIPs": lambda pod: pod.status.host_ip,
    "status.podIP": lambda pod: pod.status.pod_ip,
    "status.podIPs": lambda pod: pod.status.pod_ip,
}

ACCEPTED = f"{', '.join(_FIELDS)}, metadata.labels['KEY'] and metadata.annotations['KEY'] are accepted"


def is_field(path: str) -> bool:
    """Whether a path names such a field."""
    return path in _FIELDS or _BY_KEY.fullmatch(path) is not None


def value_of(pod: Pod, path: str) -> str:
    """The field's value; empty where the pod has none. Raises KeyError for a path that `is_field` refuses."""
    found = _BY_KEY.fullmatch(path)
    if found is None:
        return _FIELDS[path](pod)
    kept = pod.metadata.labels if found[1] == "labels" else pod.metadata.annotations
    return kept.get(found[2], "")
