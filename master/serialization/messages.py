"""Messages of Kubernetes and their fields, read from `messages.proto`. Pure, but for reading that file.

The numbers are for bodies in protobuf; the types also define the values that clients with fixed types can decode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

MESSAGES = Path(__file__).with_name("messages.proto")

_OWN_FORMS = """
message Unknown {
  TypeMeta typeMeta = 1;
  bytes raw = 2;
  string contentEncoding = 3;
  string contentType = 4;
}
message TypeMeta {
  string apiVersion = 1;
  string kind = 2;
}
message Time {
  int64 seconds = 1;
  int32 nanos = 2;
}
message MicroTime {
  int64 seconds = 1;
  int32 nanos = 2;
}
message Quantity {
  string string = 1;
}
message IntOrString {
  int64 type = 1;
  int32 intVal = 2;
  string strVal = 3;
}
message RawExtension {
  bytes raw = 1;
}
message FieldsV1 {
  bytes raw = 1;
}
"""

_SECOND = {
    ("events.k8s.io/v1", "Event"): "EventV1",
    ("autoscaling/v1", "HorizontalPodAutoscaler"): "HorizontalPodAutoscalerV1",
    ("discovery.k8s.io/v1beta1", "EndpointSlice"): "EndpointSliceV1beta1",
}
"""(apiVersion, kind) → the message of a kind whose name another one has, too."""

_FIELD = re.compile(r"(?:(repeated) )?(?:map<string, (?P<map>\w+)>|(?P<type>\w+)) (\w+) = (\d+);(\s+// inline)?")


class Field(NamedTuple):
    """A field of a message; if `map` is set, a map from strings to `type`."""

    name: str
    number: int
    type: str
    repeated: bool
    map: bool
    inline: bool


def message_of(version: str, kind: str) -> str:
    """Return the name of the message for a kind, even if there is no such message."""
    return _SECOND.get((version, kind), kind)


@cache
def messages() -> Mapping[str, tuple[Field, ...]]:
    """Return the fields of each message, by its name."""
    found: dict[str, list[Field]] = {}
    name = ""
    for line in (_OWN_FORMS + MESSAGES.read_text()).splitlines():
        if line.startswith("message "):
            name = line.split()[1]
            found[name] = []
        elif row := _FIELD.fullmatch(line.strip()):
            kind = row["map"] or row["type"]
            found[name].append(Field(row[4], int(row[5]), kind, bool(row[1]), bool(row["map"]), bool(row[6])))
    return {key: tuple(fields) for key, fields in found.items()}
