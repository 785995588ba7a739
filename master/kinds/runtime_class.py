"""RuntimeClass: by what a node runs the containers of a pod. Kept and served. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated

from api.core.placement import Toleration
from api.meta import names
from api.meta.schema import FieldError, quoted
from api.meta.types import ATOMIC, Object, Value
from api.validation.placement import check_toleration
from api.validation.registry import KindRules
from master.kinds.checks import amounts, given, unchanged
from master.kinds.kind import AGE, NAME, Column, Kind, age


class Overhead(Value, frozen=True):
    """What a pod takes beside its containers: resource → quantity."""

    pod_fixed: dict[str, str | int | float] = {}


class Scheduling(Value, frozen=True):
    """On which nodes there is such a runtime."""

    node_selector: Annotated[dict[str, str], ATOMIC] = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(Object, frozen=True):
    """`handler` is the runtime's name on the nodes."""

    API_VERSION = "node.k8s.io/v1"
    KIND = "RuntimeClass"

    handler: str = ""
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None


def _check(item: RuntimeClass) -> Iterator[FieldError]:
    yield from given("handler", item.handler, names.dns_label)
    if item.overhead is not None:
        yield from amounts("overhead.podFixed", item.overhead.pod_fixed)
    if item.scheduling is None:
        return
    for key, value in item.scheduling.node_selector.items():
        if names.label_key(key) or names.label_value(value):
            why = names.label_key(key) or names.label_value(value)
            yield FieldError(f"scheduling.nodeSelector[{key}]", quoted(value), why)
    for number, row in enumerate(item.scheduling.tolerations):
        yield from check_toleration(f"scheduling.tolerations[{number}]", row)


def _cells(item: RuntimeClass, now: datetime.datetime) -> tuple[object, ...]:
    return item.metadata.name, item.handler, age(item.metadata.creation_timestamp, now)


RUNTIME_CLASS = Kind(
    type=RuntimeClass,
    plural="runtimeclasses",
    singular="runtimeclass",
    namespaced=False,
    columns=(NAME, Column("Handler", "The runtime's name on the nodes."), AGE),
    cells=_cells,
    own_rules=KindRules(check=_check, immutable=lambda old, new: unchanged(("handler", old.handler, new.handler))),
)
