"""PodLogOptions: read from a URL query and checked as the kubelet checks them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from api.meta import times

ALL, STDOUT, STDERR = "All", "Stdout", "Stderr"
STREAMS = (ALL, STDERR, STDOUT)
NANOSECONDS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,](?P<fraction>\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)


class InvalidLogOptions(Exception):
    """A query that is not served; `status` is that of the answer, 400 for what cannot be read, 422 for the rest."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """PodLogOptions of Kubernetes' v1. `tail_lines` and `limit_bytes` None: everything there is.

    `since_time` is in nanoseconds since 1970, so that a reader who goes on where it stopped reads nothing twice.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    stream: str = ALL
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since_seconds: int | None = None
    since_time: int | None = None

    def since(self, now: int) -> int | None:
        """The moment before which nothing is read, both in nanoseconds since 1970; None if there is none."""
        return self.since_time if self.since_seconds is None else now - self.since_seconds * NANOSECONDS


def parse_log_options(query: Mapping[str, Sequence[str]]) -> PodLogOptions:
    """What a query asks for. Raises UnwelcomeWish, with every problem.

    Of a parameter that is given twice the first counts; others than those of PodLogOptions are not looked at.
    """
    given = {name: values[0] for name, values in query.items() if values}
    if tail := given.get("tail"):  # As the kubelet has taken it since its first days
        given["tailLines"] = tail
        if tail == "all":
            del given["tailLines"]
    try:
        wish = PodLogOptions(
            follow=_flag(given, "follow"),
            previous=_flag(given, "previous"),
            timestamps=_flag(given, "timestamps"),
            stream=given.get("stream", ALL),
            tail_lines=_number(given, "tailLines"),
            limit_bytes=_number(given, "limitBytes"),
            since_seconds=_number(given, "sinceSeconds"),
            since_time=_moment(given, "sinceTime"),
        )
    except ValueError as error:
        raise InvalidLogOptions(400, f"Unable to decode query: {error}") from None
    if problems := list(_problems(wish)):
        raise InvalidLogOptions(422, f"Invalid request: {', '.join(problems)}")
    return wish


def _problems(wish: PodLogOptions) -> Iterator[str]:
    """In the words of Kubernetes' ValidatePodLogOptions."""
    if wish.tail_lines is not None and wish.tail_lines < 0:
        yield f"tailLines: Invalid value: {wish.tail_lines}: must be greater than or equal to 0"
    if wish.limit_bytes is not None and wish.limit_bytes < 1:
        yield f"limitBytes: Invalid value: {wish.limit_bytes}: must be greater than 0"
    if wish.since_seconds is not None and wish.since_time is not None:
        yield "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
    elif wish.since_seconds is not None and wish.since_seconds < 1:
        yield f"sinceSeconds: Invalid value: {wish.since_seconds}: must be greater than 0"
    if wish.stream not in STREAMS:
        supported = ", ".join(f'"{name}"' for name in STREAMS)
        yield f'stream: Unsupported value: "{wish.stream}": supported values: {supported}'
    if wish.stream != ALL and wish.tail_lines is not None:
        yield "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"


def _flag(given: Mapping[str, str], name: str) -> bool:
    """Only `0` and `false` say no: `?follow` alone says yes."""
    return name in given and given[name].lower() not in {"0", "false"}


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not _WHOLE.fullmatch(text) or not -(1 << 63) <= (number := int(text)) < 1 << 63:
        raise ValueError(f'{name}: "{text}" is no whole number of 64 bits')
    return number


def _moment(given: Mapping[str, str], name: str) -> int | None:
    """Nanoseconds since 1970. An empty one, and `null`, come before everything."""
    text = given.get(name)
    if text is None:
        return None
    try:
        return 0 if text in {"", "null"} else nanoseconds(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def nanoseconds(text: str) -> int:
    """Since 1970, of a time of RFC 3339. Raises ValueError."""
    found = _MOMENT.fullmatch(text)
    if not found:
        raise ValueError(f'"{text}" is no time of RFC 3339, such as 2026-01-31T12:00:00.5Z')
    fraction = found["fraction"] or ""
    whole = times.parse_time(text.replace(f"{text[19]}{fraction}", "", 1) if fraction else text) - EPOCH
    return (whole.days * 86400 + whole.seconds) * NANOSECONDS + int(fraction[:9].ljust(9, "0"))
