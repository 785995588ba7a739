"""What a driver may raise; foreign exceptions are mapped to these at the driver's door.

DriverError
├── NotReady   what we depend on does not answer or is not there yet: look again later
├── Refused    our input was understood and declined: trying the same again is of no use
└── Gone       what we named is not there; for a removal that is success
"""

from __future__ import annotations


class DriverError(Exception):
    """`str(error)` names the object, what the other side said in its own words, and what was left unchanged."""


class NotReady(DriverError):
    """Try again later."""


class Refused(DriverError):
    """Trying the same again is of no use."""


class Gone(DriverError):
    """What we named is not there."""
