"""Devices, and claims of them."""

from __future__ import annotations

from typing import Any

GPU = {"deviceClassName": "gpu"}


EXPRESSION = {"cel": {"expression": "device.driver == 'd'"}}


PARAMETERS = {"opaque": {"driver": "gpu.example.org", "parameters": {"mode": "shared"}}}


WHERE = {"driver": "gpu.example.org", "pool": {"name": "n", "resourceSliceCount": 1}}


def claim(*requests: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": list(requests), **rest}}}


def exactly(**rest: Any) -> dict[str, Any]:
    return claim({"name": "a", "exactly": GPU | rest})


def template(**rest: Any) -> dict[str, Any]:
    return {"spec": {**exactly(), **rest}}


def slice_of(*devices: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"spec": {**WHERE, "nodeName": "n", "devices": list(devices), **rest}}


def device(**rest: Any) -> dict[str, Any]:
    return {"name": "gpu-0", **rest}


GOOD_DEVICES: list[tuple[str, dict[str, Any]]] = [
    ("resourceclaims", exactly(selectors=[EXPRESSION], tolerations=[{"key": "a", "effect": "NoExecute"}])),
    ("resourceclaims", claim({"name": "a", "firstAvailable": [{"name": "big", **GPU}, {"name": "small", **GPU}]},
                             constraints=[{"requests": ["a/big"], "matchAttribute": "example.org/numa"}],
                             config=[{"requests": ["a"], **PARAMETERS}])),
    ("resourceclaimtemplates", template(metadata={"labels": {"a": "b"}})),
    ("deviceclasses", {"spec": {"selectors": [EXPRESSION], "config": [PARAMETERS],
                                "extendedResourceName": "example.org/gpu"}}),
    ("resourceslices", slice_of(
        device(attributes={"model": {"string": "A"}, "example.org/numa": {"int": 0}, "fast": {"bool": False}},
               capacity={"memory": {"value": "40Gi"}}, taints=[{"key": "a", "effect": "NoSchedule"}],
               consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}]),
        sharedCounters=[{"name": "s", "counters": {"c": {"value": "4"}}}])),
    ("resourceslices", slice_of(device(allNodes=True), nodeName=None, perDeviceNodeSelection=True)),
]  # fmt: skip
