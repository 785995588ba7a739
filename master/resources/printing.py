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
    if seconds < 120:
        return f"{max(seconds, 0)}s" if seconds >= -1 else "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _two_units(minutes, "m", seconds % 60, "s")
    if hours < 8:
        return _two_units(hours, "h", minutes % 60, "m") if hours >= 3 else f"{minutes}m"
    if days < 8:
        return _two_units(days, "d", hours % 24, "h") if hours >= 48 else f"{hours}h"
    years, rest = divmod(days, 365)
    if years < 2:
        return f"{days}d"
    return _two_units(years, "y", rest, "d") if years < 8 else f"{years}y"


def _two_units(number: int, unit: str, part: int, small: str) -> str:
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
