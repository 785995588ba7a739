"""Pods and quotas as a client sends them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from api.core.pod import Pod
from api.validation.registry import decode, default
from master.resources.quotas import ResourceQuota, ResourceQuotaStatus
from master.resources.scheme import BY_KIND


def decoded(kind: type[Any], **document: Any) -> Any:
    """Return an object with defaults. `document` has fields by their JSON names, such as `initContainers`.

    A field that the kind does not have fails the test.
    """
    rules = BY_KIND[kind.KIND].rules
    metadata = {"name": "x", "namespace": "red", **document.pop("metadata", {})}
    obj, problems, _ = decode(kind, {"metadata": metadata, **document}, rules)
    assert obj is not None, problems
    assert not problems
    return default(obj, rules)


def pod(*resources: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    def containers(prefix: str, rows: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return [
            {"name": f"{prefix}{n}", "image": "i:1", "resources": requirements} for n, requirements in enumerate(rows)
        ]

    rows = {"containers": containers("c", resources or ({},)), "initContainers": containers("i", init)}
    result: Pod = decoded(Pod, spec={**rows, **spec})
    return result


def quota(hard: dict[str, Any], used: dict[str, Any] | None = None, name: str = "q", **spec: Any) -> ResourceQuota:
    result: ResourceQuota = decoded(ResourceQuota, metadata={"name": name}, spec={"hard": hard, **spec})
    status = ResourceQuotaStatus(hard=result.spec.hard, used=used) if used is not None else ResourceQuotaStatus()
    return replace(result, status=status)
