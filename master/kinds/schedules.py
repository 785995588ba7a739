"""The times that a schedule in the form of cron names. Pure, but for the database of time zones."""

from __future__ import annotations

import datetime
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS, LONGEST = 5, 1000
MINUTE = datetime.timedelta(minutes=1)
_SOME_DAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def is_zone(name: str) -> bool:
    """Whether there is such a time zone."""
    return name in _zones()


def problem(schedule: str) -> str:
    """What is wrong with a schedule; empty if nothing."""
    if "TZ" in schedule:
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if len(schedule) > LONGEST:
        return f"must be no more than {LONGEST} characters"
    plain = _plain(schedule)
    accepted = f"five fields as in cron, or one of {', '.join(MACROS)}, are accepted"
    if len(plain.split()) != FIELDS:
        return accepted
    try:
        CronSim(plain, _SOME_DAY)
    except CronSimError as error:
        return f"{str(error)[:1].lower()}{str(error)[1:]}; {accepted}"
    return ""


def _plain(schedule: str) -> str:
    """In the five fields of cron, in which "?" is another way to write "*"."""
    words = MACROS.get(schedule.strip(), schedule).split()
    return " ".join(f"*{word[1:]}" if word.startswith("?") else word for word in words)


def latest(schedule: str, zone: str | None, now: datetime.datetime) -> datetime.datetime | None:
    """The last time that the schedule names, `now` included; None for one that names none."""
    minute = now.astimezone(datetime.UTC).replace(second=0, microsecond=0)
    return _latest(schedule, zone or "UTC", minute)


@lru_cache(maxsize=4096)
def _latest(schedule: str, zone: str, minute: datetime.datetime) -> datetime.datetime | None:
    """Times are named to the minute, so in each minute one look is enough."""
    try:
        past = CronSim(_plain(schedule), (minute + MINUTE).astimezone(ZoneInfo(zone)), reverse=True)
        return next(past, None)
    except CronSimError:
        return None
