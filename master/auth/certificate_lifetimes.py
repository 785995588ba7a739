"""How certificates are dated. Pure."""

from __future__ import annotations

import datetime

CLOCK_SKEW = datetime.timedelta(hours=1)
"""Certificates are valid from this time before they are issued, for nodes whose clocks are behind."""

MIN_BACKDATED_LIFETIME = datetime.timedelta(hours=8)
"""Certificates with a shorter lifetime are not backdated: CLOCK_SKEW would be too large a part of it."""
