"""Requests to the kernel's rtnetlink that attach and detach pods, several in one system call. Driver.

This module encodes and sends the requests of one pod in 0.1 ms; pyroute2 takes 9 ms.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface

from sdn.drivers.netlink_messages import (
    IFA_ADDRESS,
    IFA_LOCAL,
    IFADDRMSG,
    IFF_UP,
    IFINFOMSG,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_MTU,
    NLM_F_ACK,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    NLMSGERR,
    NLMSGHDR,
    NUMBER,
    RTATTR,
    RTM_DELLINK,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    aligned,
)

RTMSG = struct.Struct("=BBBBBBBBI")  # family, lengths, TOS, table, protocol, scope, type, flags
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
IFLA_ADDRESS, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 18, 28
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_FLAGS, IFA_F_NOPREFIXROUTE = 8, 0x200
RTA_OIF, RTA_GATEWAY = 4, 5
RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST = 254, 4, 0, 1
RTNH_F_ONLINK = 4  # the gateway needs no route of its own
IFF_PROMISC = 0x100
_BUFFER_BYTES = 1 << 15
_MAX_REQUESTS = 64
"""Requests of one system call. The kernel answers them all before it returns; 280 answers fill the socket's buffer of
208 KiB, and all further ones would be lost.
"""
_SEQUENCE = itertools.count(1)
"""Numbers of requests. Dumps on the same socket have 0."""

MAX_ALIAS_BYTES = 255
LOOPBACK = 1
"""The index of `lo` in every network namespace."""

Request = tuple[int, int, bytes]
"""Type, flags and body of a netlink message."""


def create_veth_pair(device: str, mtu: int, *, netns: int, ifname: str, mac: str) -> Request:
    """Return a request that creates a veth pair, both ends down.

    `netns` is a file descriptor of the network namespace of the end with the name `ifname`.
    """
    far = IFINFOMSG.pack(0, 0, 0, 0, 0) + _name(ifname) + _number(IFLA_MTU, mtu) + _number(IFLA_NET_NS_FD, netns)
    far += _attribute(IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))
    info = _attribute(IFLA_INFO_KIND, b"veth") + _attribute(IFLA_INFO_DATA, _attribute(VETH_INFO_PEER, far))
    body = IFINFOMSG.pack(0, 0, 0, 0, 0) + _name(device) + _number(IFLA_MTU, mtu) + _attribute(IFLA_LINKINFO, info)
    return RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body


def set_up(device: str, alias: str, *, promiscuous: bool) -> Request:
    """Return a request that sets a link up and gives it an alias, which is cut to MAX_ALIAS_BYTES.

    A promiscuous link receives all frames.
    """
    text = alias.encode()[:MAX_ALIAS_BYTES].decode(errors="ignore").encode()
    flags = IFF_UP | IFF_PROMISC if promiscuous else IFF_UP
    return RTM_NEWLINK, 0, IFINFOMSG.pack(0, 0, 0, flags, flags) + _name(device) + _attribute(IFLA_IFALIAS, text)


def set_up_by_index(index: int) -> Request:
    """Return a request that sets a link up."""
    return RTM_NEWLINK, 0, IFINFOMSG.pack(0, 0, index, IFF_UP, IFF_UP)


def delete_link(device: str) -> Request:
    """Return a request that deletes a link."""
    return RTM_DELLINK, 0, IFINFOMSG.pack(0, 0, 0, 0, 0) + _name(device)


def add_address(index: int, address: IPv4Interface) -> Request:
    """Return a request that gives a link an address, without a route to its network."""
    body = IFADDRMSG.pack(socket.AF_INET, address.network.prefixlen, 0, RT_SCOPE_UNIVERSE, index)
    body += _attribute(IFA_LOCAL, address.ip.packed) + _attribute(IFA_ADDRESS, address.ip.packed)
    return RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body + _number(IFA_FLAGS, IFA_F_NOPREFIXROUTE)


def put_default_route(index: int, gateway: IPv4Address) -> Request:
    """Return a request that sets the default route, to a gateway on the link."""
    body = RTMSG.pack(
        socket.AF_INET, 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST, RTNH_F_ONLINK
    )
    return (
        RTM_NEWROUTE,
        NLM_F_CREATE | NLM_F_REPLACE,
        body + _number(RTA_OIF, index) + _attribute(RTA_GATEWAY, gateway.packed),
    )


def send(kernel: socket.socket, *requests: Request) -> None:
    """Send requests, _MAX_REQUESTS at once, over a blocking socket. Raises OSError with the first error.

    The kernel carries them out in order, and those after one that failed as well.
    """
    starts = range(0, len(requests), _MAX_REQUESTS)
    errors = [_send_at_once(kernel, requests[start : start + _MAX_REQUESTS]) for start in starts]
    code = next(filter(None, errors), 0)
    if code:
        raise OSError(code, os.strerror(code))


def _send_at_once(kernel: socket.socket, requests: Sequence[Request]) -> int:
    """Return the first error, or 0."""
    waiting = {next(_SEQUENCE): request for request in requests}
    messages = (
        NLMSGHDR.pack(NLMSGHDR.size + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | flags, number, 0) + body
        for number, (kind, flags, body) in waiting.items()
    )
    kernel.send(b"".join(messages))
    code = 0
    while waiting:
        data = kernel.recv(_BUFFER_BYTES)
        while data:
            length, kind, _, number, _ = NLMSGHDR.unpack_from(data)
            if kind == NLMSG_ERROR and waiting.pop(number, None) is not None:
                (result,) = NLMSGERR.unpack_from(data, NLMSGHDR.size)
                code = code or -result
            data = data[aligned(length) :]
    return code


def _name(name: str) -> bytes:
    return _attribute(IFLA_IFNAME, name.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, NUMBER.pack(value))


def _attribute(kind: int, value: bytes) -> bytes:
    return RTATTR.pack(RTATTR.size + len(value), kind) + value + bytes(-len(value) % 4)
