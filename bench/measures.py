"""All measures, in the order in which they run."""

from __future__ import annotations

from typing import Any

from bench import (
    api_server,
    cni_plugin,
    endpoint_latency,
    host_subnets,
    idle_daemons,
    megaflows,
    name_server,
    pod_attach,
    pod_attach_alternatives,
    pod_start,
    service_proxy,
    streaming,
    switch_restart,
    userspace_proxy,
)
from bench.measurement import Measure

MEASURES: dict[str, Measure[Any]] = {
    measure.name: measure
    for measure in (
        pod_attach.MEASURE,
        pod_attach_alternatives.MEASURE,
        cni_plugin.MEASURE,
        host_subnets.MEASURE,
        switch_restart.MEASURE,
        megaflows.MEASURE,
        pod_start.MEASURE,
        idle_daemons.MEASURE,
        api_server.MEASURE,
        service_proxy.MEASURE,
        endpoint_latency.MEASURE,
        userspace_proxy.MEASURE,
        streaming.MEASURE,
        name_server.MEASURE,
    )
}
