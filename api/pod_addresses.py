"""Whose an address of the cluster network is: all that nodes read of pods of other nodes. Pure."""

from __future__ import annotations

import msgspec

from api.objects import FINAL_PHASES, Object
from api.value import Value


class PodAddress(Object, frozen=True):
    """A pod, as far as services go by it: `phase` and `ip` of its status, and whether it is in its node's network."""

    API_VERSION = "podlane.io/v1"
    KIND = "PodAddress"

    phase: str = ""
    ip: str = ""
    host_network: bool = False


class _SlimSpec(Value, frozen=True):
    host_network: bool = False


class _SlimStatus(Value, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class SlimPod(Object, frozen=True):
    """The same of a Pod, of an API server that has no PodAddresses."""

    API_VERSION = "v1"
    KIND = "Pod"

    spec: _SlimSpec = _SlimSpec()
    status: _SlimStatus = _SlimStatus()


def address_of(pod: SlimPod) -> PodAddress:
    """What a PodAddress would say."""
    return PodAddress(
        metadata=pod.metadata, phase=pod.status.phase, ip=pod.status.pod_ip, host_network=pod.spec.host_network
    )


def owned_address(pod: PodAddress) -> str:
    """The address that is the pod's own, as long as it lives; empty if there is none."""
    return "" if pod.host_network or pod.phase in FINAL_PHASES else pod.ip
