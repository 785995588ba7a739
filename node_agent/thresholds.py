"""Soft thresholds of eviction: a signal may be below them for a while. Pure; facts/node.md 16."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from node_agent.eviction import SIGNALS, BadThreshold, Threshold, thresholds

_PERIOD = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def soft(limits: str, periods: str) -> tuple[Threshold, ...]:
    """From `memory.available<1Gi` and `memory.available=1m30s`: each threshold has its period. Raises BadThreshold."""
    grace = dict(_period(part.strip()) for part in periods.split(",") if part.strip())
    found = thresholds(limits)
    signals = {one.signal for one in found}
    for signal in sorted(signals ^ grace.keys()):
        missing = "grace period" if signal in signals else "soft threshold"
        raise BadThreshold(f"{signal} has no {missing}; every soft threshold needs a grace period, and no other")
    return tuple(replace(one, grace=grace[one.signal]) for one in found)


def _period(text: str) -> tuple[str, timedelta]:
    signal, _, length = text.partition("=")
    shape = _PERIOD.fullmatch(length)
    if signal not in SIGNALS or not length or shape is None:
        raise BadThreshold(f'found {text!r}; for example "memory.available=1m30s" is accepted')
    hours, minutes, seconds = (float(part or 0) for part in shape.groups())
    return signal, timedelta(hours=hours, minutes=minutes, seconds=seconds)


def first_met(
    before: Mapping[Threshold, datetime], low: Iterable[Threshold], now: datetime
) -> dict[Threshold, datetime]:
    """Since when each of the thresholds that are met now has been so without a break."""
    return {one: before.get(one, now) for one in low}


def due(since: Mapping[Threshold, datetime], now: datetime) -> tuple[Threshold, ...]:
    """Those that call for action now: hard ones at once, soft ones after their time."""
    return tuple(one for one, moment in since.items() if one.grace is None or now - moment >= one.grace)


def next_due(since: Mapping[Threshold, datetime], now: datetime) -> datetime | None:
    """When the next one will."""
    ends = (moment + one.grace for one, moment in since.items() if one.grace is not None)
    return min((end for end in ends if end > now), default=None)
