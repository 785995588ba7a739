"""Errors of single objects in the passes of a controller, and the back-off after which each is retried. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reconcile.backoff import Backoff

BACKOFF = Backoff(1.0, 60.0)
"""Seconds before a retry; it doubles."""


@dataclass(frozen=True, slots=True)
class ObjectError:
    """An error that lasts: its text, the number of failed attempts, the time of the next retry (monotonic clock)."""

    text: str
    failures: int
    retry_at: float


ObjectErrors = Mapping[str, ObjectError]
"""By object, such as `Pod red/web`."""


def after_pass(before: ObjectErrors, errors: Mapping[str, Exception], now: float) -> dict[str, ObjectError]:
    """Return the errors that last after a pass in which `errors` occurred.

    A pass that another object started before `retry_at` does not count as an attempt.
    """
    after: dict[str, ObjectError] = {}
    for subject, error in errors.items():
        text, known = f"{type(error).__name__}: {error}", before.get(subject)
        if known is None or known.text != text:
            after[subject] = ObjectError(text, 1, now + BACKOFF.delay(1))
        elif now < known.retry_at:
            after[subject] = known
        else:
            after[subject] = ObjectError(text, known.failures + 1, now + BACKOFF.delay(known.failures + 1))
    return after
