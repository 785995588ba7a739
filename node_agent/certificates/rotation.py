"""When a certificate is to be replaced. Pure."""

from __future__ import annotations

import datetime

from api.pem import Certificate

EARLIEST, LATEST = 0.7, 0.9
"""Between these parts of its life; each certificate at another moment, so that nodes do not come all at once."""


def due(certificate: Certificate) -> datetime.datetime:
    """When a certificate is to be replaced: the same moment, whenever it is asked for."""
    spread = int(certificate.digest[:8], 16) / 0xFFFFFFFF
    life = certificate.ends - certificate.begins
    return certificate.begins + life * (EARLIEST + (LATEST - EARLIEST) * spread)


def is_due(certificate: Certificate, now: datetime.datetime) -> bool:
    """Whether it is to be replaced now."""
    return due(certificate) <= now
