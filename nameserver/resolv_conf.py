"""The upstream name servers of a resolv.conf file, which is read again periodically."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

DNS_PORT = 53

READ_INTERVAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, order=True)
class Upstream:
    """An upstream name server."""

    address: str
    port: int = DNS_PORT


def nameservers(text: str) -> Iterator[Upstream]:
    """Yield the name servers of a resolv.conf. Entries that are not addresses are skipped."""
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
    """The name servers of a file. `own` are the addresses of this name server itself, which are never returned."""

    path: Path
    own: Collection[str] = ()
    _upstreams: tuple[Upstream, ...] = ()
    _read_at: float = field(default=float("-inf"))

    def __call__(self) -> tuple[Upstream, ...]:
        """Return the name servers in order; none if the file cannot be read."""
        now = time.monotonic()
        if now >= self._read_at + READ_INTERVAL_SECONDS:
            self._read_at = now
            try:
                self._upstreams = tuple(dict.fromkeys(nameservers(self.path.read_text(errors="replace"))))
            except OSError:
                self._upstreams = ()
        return tuple(upstream for upstream in self._upstreams if upstream.address not in self.own)
