"""RequestInfo, the resource that a path names, and Selection, the objects that a list or watch selects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.meta.selectors import BadSelector, Selector, parse_field_selector, parse_label_selector
from master import errors
from master.resources.resource import AnyResource
from master.storage.interface import Record


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The path of a resource, an object or a subresource. Parts that the path does not have are empty."""

    resource: AnyResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def bool_param(query: Mapping[str, str], name: str) -> bool:
    """Return a boolean parameter. Raises StatusError."""
    text = query.get(name, "")
    if text in ("1", "true", "True", "t", "T", "TRUE"):
        return True
    if text in ("", "0", "false", "False", "f", "F", "FALSE"):
        return False
    raise errors.bad_request(f"parameter {name} is {text!r}; true and false are accepted")


NameFilter = Callable[[str], bool]
"""Return whether the user may get the object of that name."""

RecordFilter = Callable[[Record], bool]
"""Return whether the user is the owner of an object that only its owner sees."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects that a list or watch selects. Without a filter the user may get all of them."""

    resource: AnyResource
    namespace: str
    labels: Selector
    fields: Selector
    name_filter: NameFilter | None = None
    record_filter: RecordFilter | None = None

    def matches(self, record: Record | None) -> bool:
        """Return whether this revision of an object is selected."""
        if record is None or (self.namespace and record.key.namespace != self.namespace):
            return False
        if self.name_filter is not None and not self.name_filter(record.key.name):
            return False
        if self.record_filter is not None and not self.record_filter(record):
            return False
        if self.labels.requirements and not self.labels.matches(record.object.metadata.labels):
            return False
        return not self.fields.requirements or self.fields.matches(self.resource.field_values(record.object))

    @property
    def selects_all(self) -> bool:
        """Return whether there is no selector and no filter."""
        has_filter = self.name_filter is not None or self.record_filter is not None
        return not has_filter and not self.labels.requirements and not self.fields.requirements


def parse_selection(
    info: RequestInfo,
    query: Mapping[str, str],
    name_filter: NameFilter | None = None,
    record_filter: RecordFilter | None = None,
) -> Selection:
    """Return the selection of a request. Raises StatusError."""
    try:
        labels = parse_label_selector(query.get("labelSelector", ""))
        fields = parse_field_selector(query.get("fieldSelector", ""), info.resource.selectable_field_names)
    except BadSelector as error:
        raise errors.bad_request(str(error)) from error
    return Selection(info.resource, info.namespace, labels, fields, name_filter, record_filter)
