"""Links, addresses, routes and rate limits of the node and of pods' network namespaces, through rtnetlink. Driver."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import TypeVar

from reconcile import atomic_file
from reconcile.errors import DriverError, Gone, NotReady, Refused
from reconcile.imports import defer_package
from sdn.drivers import rtnetlink
from sdn.drivers.link_dump import dump_links, dump_names
from sdn.model.host import (
    ALIAS,
    BRIDGE_END,
    DOCKER_BRIDGE,
    DOCKER_LINKS,
    DOCKER_PORT_NAME,
    DockerBridgeConfig,
    Link,
    Route,
    VethPair,
)

defer_package("pyroute2")  # all of it takes 6 MB and 80 modules more
from pyroute2.iproute.linux import AsyncIPRoute  # noqa: E402
from pyroute2.netlink.exceptions import NetlinkError  # noqa: E402

T = TypeVar("T")

ROUTE_PROTOCOL = 112
"""The protocol number of our routes; see `ip route show proto 112`."""

_MAIN_TABLE = 254
_MIN_BURST_BYTES = 2 * 9000  # two packets of the largest size
_CLONE_NEWNET = 0x40000000
_NO_PREFIX_ROUTE = 0x200
_TEMPORARY_NAME = "podlane-new"
_SIOCGIFINDEX, _SIOCETHTOOL = 0x8933, 0x8946
_INDEX_REQUEST = struct.Struct("16si20x")  # struct ifreq
_ETHTOOL_STXCSUM = 0x17
_LIBC = ctypes.CDLL(None, use_errno=True)


class Netlink:
    """The network namespace of this process. Use as `async with Netlink() as netlink`."""

    def __init__(self) -> None:
        self._here = AsyncIPRoute()
        self._kernel = _kernel_socket()
        self._lock = threading.Lock()

    async def __aenter__(self) -> Netlink:
        await self._here.setup_endpoint()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._here.close()
        self._kernel.close()

    async def links(self) -> dict[str, Link]:
        """Return all links of this namespace by name, with their IPv4 addresses."""
        return await asyncio.to_thread(self._dump, dump_links)

    async def create_veth_pair(self, pod: VethPair) -> None:
        """Create a veth pair and configure the pod's end; the host's end stays down. IPv6 is disabled on both.

        A pair left by an interrupted attempt is replaced. Raises Gone if the network namespace is gone.
        """
        with _translate_errors(f"veth pair {pod.device}"):
            endpoint, index = await asyncio.to_thread(self._create_veth_pair, pod)
            with endpoint:
                if pod.egress_bandwidth:
                    async with AsyncIPRoute(use_socket=endpoint) as inside:
                        await _limit(inside, index, pod.egress_bandwidth)

    def _create_veth_pair(self, pod: VethPair) -> tuple[socket.socket, int]:
        """Create and configure a veth pair. Return a netlink socket of the pod, and the index of its end."""
        try:
            netns = os.open(pod.netns, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Gone(f"{pod.netns}: {error.strerror}; the sandbox is gone") from None
        try:
            kernel, control = _in_netns(netns, _prepare_netns)
            with control, contextlib.ExitStack() as on_error:
                on_error.enter_context(kernel)
                self._add_pair(netns, pod)
                _disable_ipv6(pod.device)
                if not pod.tx_checksum_offload:
                    _disable_tx_checksum_offload(pod.ifname, control)
                index = _index(pod.ifname, control)
                rtnetlink.send(
                    kernel,
                    rtnetlink.set_up_by_index(rtnetlink.LOOPBACK),
                    rtnetlink.set_up_by_index(index),
                    rtnetlink.add_address(index, pod.address),
                    rtnetlink.put_default_route(index, pod.gateway),
                )
                on_error.pop_all()
                return kernel, index
        finally:
            os.close(netns)

    def _add_pair(self, netns: int, pod: VethPair) -> None:
        pair = rtnetlink.create_veth_pair(pod.device, pod.mtu, netns=netns, ifname=pod.ifname, mac=pod.mac)
        try:
            self._send(pair)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            self._delete(pod.device)
            self._send(pair)

    def _send(self, *requests: rtnetlink.Request) -> None:
        with self._lock:
            rtnetlink.send(self._kernel, *requests)

    async def check_pod_interface(self, netns: str, ifname: str, address: IPv4Interface, gateway: IPv4Address) -> str:
        """Return what the pod's end of a veth pair lacks, or an empty string. Raises Gone."""
        try:
            netns_fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Gone(f"{netns}: {error.strerror}; the sandbox is gone") from None
        try:
            endpoint, links = await asyncio.to_thread(_in_netns, netns_fd, _socket_and_links)
        finally:
            os.close(netns_fd)
        async with AsyncIPRoute(use_socket=endpoint) as inside:
            link = links.get(ifname)
            if link is None:
                return f"there is no {ifname} in it"
            if not link.up:
                return f"{ifname} is down"
            if address not in link.addresses:
                return f"{ifname} has lost its address {address}"
            routes = await inside.route("dump", family=socket.AF_INET)
            gateways = {message.get_attr("RTA_GATEWAY") async for message in routes}
            return "" if str(gateway) in gateways else f"it has lost its default route through {gateway}"

    async def rate_limits(self) -> dict[str, int]:
        """Return the rate limits of links of this namespace, in bits per second, by name of the link."""
        names, limits = await asyncio.to_thread(self._dump, dump_names), {}
        async for message in await self._here.tc("dump"):
            if message.get_attr("TCA_KIND") == "tbf" and message["index"] in names:
                limits[names[message["index"]]] = message.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"] * 8
        return limits

    async def set_rate_limit(self, device: str, bits: int) -> None:
        """Limit what a link of this namespace sends, in bits per second."""
        with _translate_errors(f"link {device}"):
            await _limit(self._here, await self._index(device), bits)

    async def set_up(self, aliases: Mapping[str, str], *, promiscuous: bool) -> None:
        """Set links of this namespace up, give them these aliases, and let them take all frames if `promiscuous`."""
        requests = [rtnetlink.set_up(device, alias, promiscuous=promiscuous) for device, alias in aliases.items()]
        with _translate_errors(f"links {' '.join(aliases)}"):
            await asyncio.to_thread(self._send, *requests)

    async def delete_links(self, devices: Iterable[str]) -> None:
        """Delete links. A link that does not exist is no error."""
        for device in devices:
            with _translate_errors(f"link {device}"):
                await asyncio.to_thread(self._delete, device)

    def _delete(self, device: str) -> None:
        try:
            self._send(rtnetlink.delete_link(device))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    async def gateway_routes(self, device: str) -> frozenset[IPv4Network]:
        """Return the destinations of our routes through a device."""
        index = await self._index(device)
        destinations = set()
        async for message in await self._here.route("dump", family=socket.AF_INET):
            if message["proto"] == ROUTE_PROTOCOL and message.get_attr("RTA_OIF") == index:
                destinations.add(IPv4Network((message.get_attr("RTA_DST") or "0.0.0.0", message["dst_len"])))
        return frozenset(destinations)

    async def routes(self) -> tuple[Route, ...]:
        """Return all IPv4 routes of the main table that go through a link."""
        names, routes = await asyncio.to_thread(self._dump, dump_names), []
        async for message in await self._here.route("dump", family=socket.AF_INET, table=_MAIN_TABLE):
            device = names.get(message.get_attr("RTA_OIF"))
            if device is not None and message.get_attr("RTA_TABLE") == _MAIN_TABLE:
                target = IPv4Network((message.get_attr("RTA_DST") or "0.0.0.0", message["dst_len"]))
                routes.append(Route(target, device))
        return tuple(routes)

    async def set_gateway(self, device: str, address: IPv4Interface, routes: frozenset[IPv4Network]) -> None:
        """Set a device up with exactly this address and these routes of ours."""
        with _translate_errors(f"link {device}"):
            index = await self._index(device)
            await self._here.link("set", index=index, state="up")
            await self._set_addresses(device, index, frozenset({address}))
            for stale in await self.gateway_routes(device) - routes:
                await self._here.route("del", dst=str(stale), oif=index, proto=ROUTE_PROTOCOL)
            for network in sorted(routes):
                await self._here.route(
                    "replace",
                    dst=str(network),
                    oif=index,
                    scope="link",
                    proto=ROUTE_PROTOCOL,
                    prefsrc=str(address.ip),
                )

    async def put_docker_bridge(self, config: DockerBridgeConfig) -> None:
        """Create or repair Docker's bridge and its veth pair. IPv6 is disabled on both."""
        with _translate_errors(f"bridge {DOCKER_BRIDGE}"):
            present = await self.links()
            if DOCKER_BRIDGE not in present:
                await self._add_bridge_with_alias(DOCKER_BRIDGE)
            if not {BRIDGE_END, DOCKER_PORT_NAME} <= present.keys():
                await asyncio.to_thread(self._delete, BRIDGE_END)
                far = {"ifname": DOCKER_PORT_NAME, "txqlen": 0}
                await self._here.link("add", ifname=BRIDGE_END, kind="veth", txqlen=0, peer=far)
            master = await self._index(DOCKER_BRIDGE)
            for name in DOCKER_LINKS:
                _disable_ipv6(name)
                own = {"master": master} if name == BRIDGE_END else {}
                index = await self._index(name)
                await self._here.link("set", index=index, mtu=config.mtu, ifalias=ALIAS, state="up", **own)
                addresses = frozenset({config.address}) if name == DOCKER_BRIDGE else frozenset()
                await self._set_addresses(name, index, addresses)
            if not config.tx_checksum_offload:
                with _control_socket() as control:
                    _disable_tx_checksum_offload(BRIDGE_END, control)

    async def _add_bridge_with_alias(self, name: str) -> None:
        """Create a bridge that never exists under its name without our alias.

        The kernel accepts no alias for a new link, so the bridge is renamed after it has the alias.
        """
        await asyncio.to_thread(self._delete, _TEMPORARY_NAME)
        await self._here.link("add", ifname=_TEMPORARY_NAME, kind="bridge")
        index = await self._index(_TEMPORARY_NAME)
        await self._here.link("set", index=index, ifalias=ALIAS)
        await self._here.link("set", index=index, ifname=name)

    async def _set_addresses(self, device: str, index: int, addresses: frozenset[IPv4Interface]) -> None:
        """Set exactly these addresses, without the kernel's routes to their networks."""
        present = (await self.links())[device].addresses
        for stale in present - addresses:
            await self._here.addr("del", index=index, address=str(stale.ip), prefixlen=stale.network.prefixlen)
        for address in addresses - present:
            await self._here.addr(
                "add",
                index=index,
                address=str(address.ip),
                prefixlen=address.network.prefixlen,
                flags=_NO_PREFIX_ROUTE,
            )

    def _dump(self, read: Callable[[socket.socket], T]) -> T:
        """Read links over the blocking socket, in a thread."""
        with self._lock:
            return read(self._kernel)

    async def _index(self, device: str) -> int:
        with _translate_errors(f"link {device}"):
            return int((await self._here.link("get", ifname=device))[0]["index"])


async def _limit(kernel: AsyncIPRoute, index: int, bits: int) -> None:
    """Limit what a device sends, in bits per second, with a queue of 50 ms for bursts."""
    rate = max(bits // 8, 1)
    burst = max(rate // 100, _MIN_BURST_BYTES)
    await kernel.tc("replace", "tbf", index, handle=0x10000, rate=rate, burst=burst, limit=burst + rate // 20)


def set_sysctl(name: str, value: str, found_values: Path, required: bool = True) -> bool:
    """Write a sysctl. Return True if its value was changed. Raises Refused; a missing one is an error if required.

    The first value that was found is kept in a file, NAME=VALUE per line, for who removes Podlane from the host.
    """
    path = Path("/proc/sys") / name.replace(".", "/")
    if not required and not path.exists():
        return False
    try:
        found = path.read_text().strip()
        if found == value:
            return False
        kept = found_values.read_text() if found_values.exists() else ""
        if f"{name}=" not in kept:
            found_values.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write(found_values, f"{kept}{name}={found}\n".encode())
        path.write_text(value)
        return True
    except OSError as error:
        raise Refused(f"sysctl {name}={value}: {error.strerror}") from None


def netns_id(path: str) -> str:
    """Return an identifier of the network namespace at `path`, unique on this host.

    Raises Gone if there is none, and Refused if it is the node's own.
    """
    try:
        netns, own = Path(path).stat(), Path("/proc/self/ns/net").stat()
    except OSError as error:
        raise Gone(f"{path}: {error.strerror}; the sandbox is gone") from None
    if (netns.st_dev, netns.st_ino) == (own.st_dev, own.st_ino):
        raise Refused(f"{path} is the node's own network namespace; that of a sandbox is accepted")
    return f"{netns.st_dev}:{netns.st_ino}"


@contextlib.contextmanager
def _translate_errors(subject: str) -> Iterator[None]:
    try:
        yield
    except (NetlinkError, OSError) as error:
        code = error.code if isinstance(error, NetlinkError) else error.errno or 0
        kind: type[DriverError] = NotReady if code in {errno.ENODEV, errno.EBUSY} else Refused
        raise kind(f"{subject}: the kernel says {os.strerror(code)}") from None
    except (struct.error, ValueError) as error:
        raise Refused(f"{subject}: cannot be encoded for the kernel: {error}") from None


def _in_netns(netns: int, function: Callable[[], T]) -> T:
    """Run a function in this thread with another network namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_namespace(netns)
        try:
            return function()
        finally:
            _set_namespace(home)
    finally:
        os.close(home)


def _set_namespace(fd: int) -> None:
    if _LIBC.setns(fd, _CLONE_NEWNET):
        raise Gone(f"network namespace: {os.strerror(ctypes.get_errno())}")


def _prepare_netns() -> tuple[socket.socket, socket.socket]:
    """Disable IPv6, whose duplicate address detection would delay the pod. Return sockets for netlink and for ioctl."""
    for scope in ("all", "default"):
        _disable_ipv6(scope)
    return _kernel_socket(), _control_socket()


def _socket_and_links() -> tuple[socket.socket, dict[str, Link]]:
    kernel = _kernel_socket()
    return kernel, dump_links(kernel)


def _kernel_socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


def _control_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)


def _index(ifname: str, control: socket.socket) -> int:
    """Return the index of a link of the network namespace in which the socket was opened."""
    answer = fcntl.ioctl(control, _SIOCGIFINDEX, _INDEX_REQUEST.pack(ifname.encode(), 0))
    return int(_INDEX_REQUEST.unpack(answer)[1])


def _disable_ipv6(name: str) -> None:
    """Disable IPv6 for a device, or for `all` and `default`, unless the kernel has no IPv6."""
    with contextlib.suppress(FileNotFoundError):
        setting = os.open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(setting, b"1")
        finally:
            os.close(setting)


def _disable_tx_checksum_offload(ifname: str, control: socket.socket) -> None:
    """Do what `ethtool -K IFNAME tx off` does, in the network namespace in which the socket was opened."""
    value = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_STXCSUM, 0))
    fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP8x", ifname.encode(), ctypes.addressof(value)))
