"""Which services have to be looked at again, so that one pod's change costs as much as its services, not as all.

It is told of every event, and keeps names only: the objects are those that the look shows. A service is done with when
a pass over it has found nothing to write; so whatever became of a write, the next pass sees to it. The first pass is
about all services.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from api.core.endpoints import SERVICE_LABEL
from api.core.services import Service
from api.meta.types import Object
from master.controllers.look import Look
from master.controllers.network import endpoints
from master.controllers.network.endpoints import ME, WRITER
from master.store.records import Event
from master.writing.outcomes import Outcome

Name = tuple[str, str]
"""Namespace and name."""

Label = tuple[str, str, str]
"""Namespace, key and value."""

KINDS = ("Service", "Pod", "Endpoints", "EndpointSlice")


class EndpointWork:
    """`tell` it of every event of KINDS from before the first pass on; `passes` is what there is to be written."""

    def __init__(self) -> None:
        self._filled = False
        self._waiting: set[Name] = set()
        self._services = _Rows()
        self._pods = _Rows()
        self._slices = _Rows()

    def tell(self, event: Event) -> None:
        """Something was written or removed."""
        if self._filled:
            self._note(event.record.object, is_gone=event.type == "DELETED")

    def passes(self, look: Look) -> Iterator[Outcome]:
        """Everything that is to be written now."""
        if not self._filled:
            self._filled = True
            for kind in KINDS:
                for item in look.all(kind):
                    self._note(item)
        for name in sorted(self._waiting):
            is_done = True
            for outcome in self._of(name, look):
                is_done = False
                yield outcome
            if is_done:
                self._waiting.discard(name)

    def _of(self, name: Name, look: Look) -> Iterator[Outcome]:
        def found(kind: str, names: Iterable[str]) -> list[Any]:
            each = (look.one(kind, one, name[0]) for one in sorted(names))
            return [item for item in each if item is not None]

        services, known = found("Service", [name[1]]), found("Endpoints", [name[1]])
        pods = found("Pod", self._pods.under(*(_chosen(one) for one in services)))
        slices = found("EndpointSlice", self._slices.under((*name, "")))
        yield from endpoints.passes(services, pods, known, slices, look.now)

    def _note(self, item: Object, *, is_gone: bool = False) -> None:
        meta = item.metadata
        name = (meta.namespace, meta.name)
        if isinstance(item, Service):
            self._services.put(name, () if is_gone or not item.spec.selector else (_chosen(item),))
            self._waiting.add(name)
        elif item.KIND == "Endpoints":
            self._waiting.add(name)
        elif item.KIND == "EndpointSlice":
            self._note_slice(name, meta.labels, is_gone=is_gone)
        else:
            labels = [(meta.namespace, *label) for label in meta.labels.items()]
            either = {*self._pods.labels(name), *labels}
            self._pods.put(name, () if is_gone else labels)
            self._waiting.update((meta.namespace, one) for one in self._services.under(*either))

    def _note_slice(self, name: Name, labels: Mapping[str, str], *, is_gone: bool) -> None:
        """One that we wrote is under its service, as a label without a value."""
        service = labels.get(SERVICE_LABEL, "")
        is_ours = labels.get(WRITER) == ME and not is_gone
        either = {*self._slices.labels(name), (name[0], service, "")}
        self._slices.put(name, ((name[0], service, ""),) if is_ours else ())
        self._waiting.update((namespace, one) for namespace, one, _ in either if one)


def _chosen(service: Service) -> Label:
    """The label by which the pods of a service are looked for: one of those that it selects by."""
    return (service.metadata.namespace, *min(service.spec.selector.items(), default=("", "")))


class _Rows:
    """Names by label, and labels by name."""

    def __init__(self) -> None:
        self._names: defaultdict[Label, set[str]] = defaultdict(set)
        self._labels: dict[Name, tuple[Label, ...]] = {}

    def put(self, name: Name, labels: Iterable[Label]) -> None:
        for label in self._labels.pop(name, ()):
            self._names[label].discard(name[1])
            if not self._names[label]:
                del self._names[label]
        if after := tuple(labels):
            self._labels[name] = after
            for label in after:
                self._names[label].add(name[1])

    def labels(self, name: Name) -> tuple[Label, ...]:
        return self._labels.get(name, ())

    def under(self, *labels: Label) -> set[str]:
        return {name for label in labels for name in self._names.get(label, ())}
