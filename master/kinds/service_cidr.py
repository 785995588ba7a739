"""ServiceCIDR: the network of the addresses of services, to be read. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from msgspec.structs import replace

from api.meta.schema import MISSING, FieldError
from api.meta.types import Object, StatusCondition, Value, merge_keys
from api.validation.registry import KindRules
from master.kinds.checks import unchanged
from master.kinds.kind import AGE, NAME, VERBS, Column, Kind, age
from master.kinds.network_policy import check_network


class ServiceCIDRSpec(Value, frozen=True):
    """The networks."""

    cidrs: tuple[str, ...] = ()


class ServiceCIDRStatus(Value, frozen=True):
    """Written by a controller."""

    conditions: Annotated[tuple[StatusCondition, ...], merge_keys("type")] = ()


class ServiceCIDR(Object, frozen=True):
    """The network of the addresses of services. The master makes the one there is, from its settings."""

    API_VERSION = "networking.k8s.io/v1"
    KIND = "ServiceCIDR"

    spec: ServiceCIDRSpec = ServiceCIDRSpec()
    status: ServiceCIDRStatus = ServiceCIDRStatus()


def _check(item: ServiceCIDR) -> Iterator[FieldError]:
    if not item.spec.cidrs:
        yield FieldError("spec.cidrs", "[]", "a network is required", MISSING)
    for number, text in enumerate(item.spec.cidrs):
        yield from check_network(f"spec.cidrs[{number}]", text)


def _cells(item: ServiceCIDR, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, ",".join(item.spec.cidrs), age(item.metadata.creation_timestamp, now)


SERVICE_CIDR = Kind(
    type=ServiceCIDR,
    plural="servicecidrs",
    singular="servicecidr",
    namespaced=False,
    columns=(NAME, Column("CIDRs", "The networks."), AGE),
    cells=_cells,
    on_update=lambda new, old: replace(new, status=old.status),
    with_status=lambda new, old: replace(old, status=new.status),
    spec=lambda item: item.spec,
    own_rules=KindRules(
        check=_check, immutable=lambda old, new: unchanged(("spec.cidrs", old.spec.cidrs, new.spec.cidrs))
    ),
    verbs=tuple(verb for verb in VERBS if verb != "create"),
    refusal="the addresses of services come from one network, the master's setting serviceNetwork",
)
