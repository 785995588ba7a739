"""The IPv4 addresses of this host. Driver.

They are read with ioctl(2): the sandbox of the unit has no netlink sockets.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct
from ipaddress import IPv4Address

SIOCGIFCONF = 0x8912
MAX_INTERFACES = 1024
IFREQ_BYTES = 40


def is_own(address: str) -> bool:
    """Return whether sockets of this host can have an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return False
    return not IPv4Address(address).is_unspecified


def own_addresses() -> list[str]:
    """Return the addresses of the interfaces, without loopback (netdevice(7))."""
    requests = array.array("B", bytes(MAX_INTERFACES * IFREQ_BYTES))
    begin, length = requests.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iL", length, begin))
    used = struct.unpack("iL", answer)[0]
    addresses = {IPv4Address(bytes(requests[at + 20 : at + 24])) for at in range(0, used, IFREQ_BYTES)}
    return [str(address) for address in sorted(addresses) if not address.is_loopback]
