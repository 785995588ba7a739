"""Layouts and numbers of rtnetlink messages, with the names of the kernel's headers (rtnetlink(7)). Pure."""

from __future__ import annotations

import struct

NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
NLMSGERR = struct.Struct("=i")  # negative errno, 0 for an acknowledgement
IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, mask of flags
IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
RTATTR = struct.Struct("=HH")  # length, type
NUMBER = struct.Struct("=I")

NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK = 1, 4
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_NEWADDR, RTM_GETADDR, RTM_NEWROUTE = 16, 17, 18, 20, 22, 24
IFLA_IFNAME, IFLA_MTU, IFLA_IFALIAS = 3, 4, 20
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP = 1


def aligned(length: int) -> int:
    """Return the offset of what follows a message or an attribute of this length: a multiple of four."""
    return (length + 3) & ~3
