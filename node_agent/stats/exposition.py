"""Metrics as Prometheus reads them (text format 0.0.4). Pure.

The client library has no counters whose names do not end in `_total`, of which a kubelet has many, and takes ten times
as long for the thousands of rows that a node has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Row(NamedTuple):
    """A value; `labels` as `labelled` writes them, `at` in seconds since 1970, 0 for the time of asking.

    `suffix` is what the name of a row has beyond that of its family.
    """

    value: float
    labels: str = ""
    at: float = 0.0
    suffix: str = ""


class Family(NamedTuple):
    """Rows of one name; `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    rows: Iterable[Row]


def labelled(**labels: str) -> str:
    """Labels in the order of their names."""
    return ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in sorted(labels.items()))


def written(families: Iterable[Family]) -> str:
    """The text; a family without rows is left out."""
    return "".join(line for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for row in family.rows:
        labels = f"{{{row.labels}}}" if row.labels else ""
        moment = f" {int(row.at * 1000)}" if row.at else ""
        yield f"{head}{family.name}{row.suffix}{labels} {row.value!r}{moment}\n"
        head = ""
