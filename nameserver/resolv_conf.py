"""The upstream servers of a resolv.conf, read again when it changes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

DNS_PORT = 53
LOOK_SECONDS = 5.0
"""How old what was read may be."""


@dataclass(frozen=True, slots=True, order=True)
class Upstream:
    """A server that knows other names."""

    address: str
    port: int = DNS_PORT


def nameservers(text: str) -> Iterator[Upstream]:
    """Those of a resolv.conf; what is no address is left out."""
    for words in (line.split() for line in text.splitlines()):
        if len(words) > 1 and words[0] == "nameserver" and _is_address(words[1]):
            yield Upstream(words[1])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class ResolvConf:
    """Called, it says whom to ask, in order; `own` are addresses at which we are asked ourselves, never among them."""

    path: Path
    own: Collection[str] = ()
    _found: tuple[Upstream, ...] = ()
    _read_at: float = field(default=float("-inf"))

    def __call__(self) -> tuple[Upstream, ...]:
        """Nobody, while the file cannot be read."""
        now = time.monotonic()
        if now >= self._read_at + LOOK_SECONDS:
            self._read_at = now
            try:
                self._found = tuple(dict.fromkeys(nameservers(self.path.read_text(errors="replace"))))
            except OSError:
                self._found = ()
        return tuple(one for one in self._found if one.address not in self.own)
