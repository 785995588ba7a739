"""Columns that the tables of many resources share: name, age, durations. Pure."""

from __future__ import annotations

import datetime

from master.resources.metadata import parse_time
from master.resources.resource import Column


def age(text: str | None, now: datetime.datetime) -> str:
    """Return the time since a point in time, as text."""
    then = parse_time(text)
    return "<unknown>" if then is None else duration(int((now - then).total_seconds()))


def duration(seconds: int) -> str:
    """Return seconds as text of at most two units: 45s, 5m10s, 3h20m, 2d4h, 1y12d."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    years, rest = divmod(days, 365)
    forms = (
        (minutes < 10, minutes, "m", seconds % 60, "s"),
        (hours < 3, minutes, "m", 0, ""),
        (hours < 8, hours, "h", minutes % 60, "m"),
        (hours < 48, hours, "h", 0, ""),
        (days < 8, days, "d", hours % 24, "h"),
        (years < 2, days, "d", 0, ""),
        (years < 8, years, "y", rest, "d"),
        (True, years, "y", 0, ""),
    )
    _, number, unit, part, small = next(form for form in forms if form[0])
    return f"{number}{unit}{part}{small}" if part else f"{number}{unit}"


def none_if_empty(text: str) -> str:
    """Return the text, or `<none>` if it is empty."""
    return text or "<none>"


NAME = Column(
    "Name",
    "Name, unique among objects of this kind in a namespace.",
    lambda obj, _: obj.metadata.name,
    format="name",
)
AGE = Column("Age", "Time since the object was created.", lambda obj, now: age(obj.metadata.creation_timestamp, now))
