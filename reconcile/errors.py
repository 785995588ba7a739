"""The exceptions that drivers raise. Drivers map exceptions of other libraries to these. Pure.

DriverError
├── NotReady   a dependency does not answer or does not exist yet: retry later
├── Refused    the request was understood and rejected: a retry with the same input fails again
└── Gone       the named object does not exist; for a removal that is success
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class DriverError(Exception):
    """Base of driver errors.

    The text names the object, quotes the message of the other side, and says what was left unchanged.
    """


class NotReady(DriverError):
    """A failure that a later retry may resolve."""


class Refused(DriverError):
    """A rejection of the request itself."""


class Gone(DriverError):
    """The absence of the named object."""


@contextmanager
def os_errors_as(error_type: type[DriverError], subject: object) -> Iterator[None]:
    """Raise an OSError of the block as `error_type`, and a ValueError, such as an invalid path, as Refused.

    The message is the subject and the system's own message.
    """
    try:
        yield
    except OSError as error:
        raise error_type(f"{subject}: {error.strerror or error}") from None
    except ValueError as error:
        raise Refused(f"{subject}: {error}") from None
