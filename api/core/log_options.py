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

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,](?P<fraction>\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)


class InvalidLogOptions(Exception):
    """A rejected query. `status` is the HTTP status: 400 if it cannot be parsed, 422 if a value is not valid."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """Options of a log request (v1 PodLogOptions). None means no limit.

    `since_time` is in nanoseconds since 1970, so that a reader that resumes does not read an entry twice.
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
        """Return the time before which entries are skipped, None if there is none. Nanoseconds since 1970."""
        return self.since_time if self.since_seconds is None else now - self.since_seconds * NANOSECONDS


def parse_log_options(query: Mapping[str, Sequence[str]]) -> PodLogOptions:
    """Parse the options of a URL query. Raises InvalidLogOptions with every error.

    The first value of a repeated parameter counts. Other parameters are ignored.
    """
    parameters = {name: values[0] for name, values in query.items() if values}
    if tail := parameters.get("tail"):  # an older name of tailLines, which the kubelet accepts, too
        parameters["tailLines"] = tail
        if tail == "all":
            del parameters["tailLines"]
    try:
        options = PodLogOptions(
            follow=_parse_flag(parameters, "follow"),
            previous=_parse_flag(parameters, "previous"),
            timestamps=_parse_flag(parameters, "timestamps"),
            stream=parameters.get("stream", ALL),
            tail_lines=_parse_integer(parameters, "tailLines"),
            limit_bytes=_parse_integer(parameters, "limitBytes"),
            since_seconds=_parse_integer(parameters, "sinceSeconds"),
            since_time=_parse_time(parameters, "sinceTime"),
        )
    except ValueError as error:
        raise InvalidLogOptions(400, f"Unable to decode query: {error}") from None
    if errors := list(_errors(options)):
        raise InvalidLogOptions(422, f"Invalid request: {', '.join(errors)}")
    return options


def _errors(options: PodLogOptions) -> Iterator[str]:
    """Yield the messages of ValidatePodLogOptions in Kubernetes."""
    if options.tail_lines is not None and options.tail_lines < 0:
        yield f"tailLines: Invalid value: {options.tail_lines}: must be greater than or equal to 0"
    if options.limit_bytes is not None and options.limit_bytes < 1:
        yield f"limitBytes: Invalid value: {options.limit_bytes}: must be greater than 0"
    if options.since_seconds is not None and options.since_time is not None:
        yield "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
    elif options.since_seconds is not None and options.since_seconds < 1:
        yield f"sinceSeconds: Invalid value: {options.since_seconds}: must be greater than 0"
    if options.stream not in STREAMS:
        supported = ", ".join(f'"{name}"' for name in STREAMS)
        yield f'stream: Unsupported value: "{options.stream}": supported values: {supported}'
    if options.stream != ALL and options.tail_lines is not None:
        yield "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"


def _parse_flag(parameters: Mapping[str, str], name: str) -> bool:
    """Return whether a flag is set. Only `0` and `false` mean no; `?follow` without a value means yes."""
    return name in parameters and parameters[name].lower() not in {"0", "false"}


def _parse_integer(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text) or not -(1 << 63) <= (number := int(text)) < 1 << 63:
        raise ValueError(f'{name}: "{text}" is not a 64-bit integer')
    return number


def _parse_time(parameters: Mapping[str, str], name: str) -> int | None:
    """Return nanoseconds since 1970. An empty value, or `null`, is the beginning of time."""
    text = parameters.get(name)
    if text is None:
        return None
    try:
        return 0 if text in {"", "null"} else parse_nanoseconds(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def parse_nanoseconds(text: str) -> int:
    """Parse a time of RFC 3339 to nanoseconds since 1970. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f'"{text}" is not a time of RFC 3339, such as 2026-01-31T12:00:00.5Z')
    fraction = match["fraction"] or ""
    without_fraction = text.replace(f"{text[19]}{fraction}", "", 1) if fraction else text
    since_epoch = times.parse_time(without_fraction) - EPOCH
    return (since_epoch.days * 86400 + since_epoch.seconds) * NANOSECONDS + int(fraction[:9].ljust(9, "0"))
