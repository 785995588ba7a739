"""RFC 3339 times in UTC with seconds, as the API writes them. The current time is always an argument. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(moment: datetime) -> str:
    """Return a time as text, for example `2026-01-31T12:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Parse a time. A fraction of a second may have any length; digits beyond µs are dropped. Raises ValueError."""
    head, dot, tail = text.removesuffix("Z").partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    fraction = f".{tail[:digits][:6].ljust(6, '0')}" if dot and digits else ""
    zone = tail[digits:] if dot else ""
    moment = datetime.fromisoformat(head + fraction + zone)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
