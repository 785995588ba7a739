"""The names of all measures, in the order in which they run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.measurement import Measure

MODULES = {
    "attach": "pod_attach",
    "rivals": "pod_attach_alternatives",
    "cni": "cni_plugin",
    "peers": "host_subnets",
    "outage": "switch_restart",
    "megaflows": "megaflows",
    "throughput": "throughput",
    "pods": "pod_start",
    "idle": "idle_daemons",
    "master": "api_server",
    "access": "access_control",
    "extension": "extension",
    "services": "service_proxy",
    "endpoints": "endpoint_latency",
    "proxy": "userspace_proxy",
    "streams": "streaming",
    "names": "name_server",
}
"""Name of a measure → its module in this package."""


def load(name: str) -> Measure[Any]:
    """Import the module of a measure, and return the measure. To import all of them takes seconds."""
    measure: Measure[Any] = import_module(f"bench.{MODULES[name]}").MEASURE
    return measure
