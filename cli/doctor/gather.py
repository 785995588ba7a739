"""Observes this host for the checks. Driver.

Each function returns the observation of one subject, or raises NotObserved.
"""

from __future__ import annotations

import asyncio
import ctypes
import platform
import random
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import psutil

from api.client.client import Client, ClientError
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.node import Node
from api.network.attach import AttachError, NetworkStatus
from api.network.forwarding import accepts_pods
from api.network.types import HostSubnet
from cli.doctor import probes
from cli.doctor.checks import REFUSED
from cli.doctor.host import AGENT, MASTER, SDN, AgentSettings, Host, SdnSettings, run
from cli.doctor.observations import (
    CertificateEnd,
    Certificates,
    Cgroups,
    Clock,
    Configuration,
    Datapath,
    Disk,
    Docker,
    ForwardChain,
    Images,
    Kernel,
    Level,
    NameServers,
    Nodes,
    NodeSummary,
    NotObserved,
    OpenVSwitch,
    Peer,
    Port,
    Ports,
    Readiness,
    Store,
    Sysctls,
    Tunnels,
    Unit,
)
from cli.kubeconfig import load_administrator
from reconcile.errors import Refused
from reconcile.icmp import IcmpEcho

PROGRAM_SECONDS = 5.0
MAX_PEERS, MAX_NODES = 16, 64
"""Peers and nodes that are probed, chosen at random: a cluster may have a thousand."""

ECHO_SECONDS, ECHO_ATTEMPTS = 1.0, 3
_TIME_ERROR = 5
_PROBLEM_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "VersionSkew")
"""Conditions that report a problem if they are True; so do all conditions of podlane.io."""

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


# --- daemons ----------------------------------------------------------------------------------------------------------


async def configuration(host: Host) -> Sequence[Configuration]:
    """Return what the daemons say of their configurations."""
    return host.configurations


async def units(host: Host) -> Sequence[Unit]:
    """Return the units of our daemons, and of those without which they cannot work."""
    if not host.with_units:
        return ()
    names = [f"{daemon}.service" for daemon in host.daemons]
    names += ["openvswitch-switch.service"] if host.sdn is not None else []
    names += ["docker.service"] if host.agent is not None else []
    names += ["podlane-uplink.service"] if host.has_uplink else []
    keys = "Id,LoadState,ActiveState,SubState,UnitFileState,NRestarts"
    output = await run(["systemctl", "show", "-p", keys, *names], PROGRAM_SECONDS)
    return tuple(map(_unit, output.strip().split("\n\n")))


def _unit(text: str) -> Unit:
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    restarts = values.get("NRestarts", "")
    return Unit(
        values.get("Id", ""),
        values.get("LoadState", ""),
        values.get("ActiveState", ""),
        values.get("SubState", ""),
        values.get("UnitFileState", ""),
        int(restarts) if restarts.isdecimal() else 0,
    )


async def daemons(host: Host) -> Sequence[Readiness]:
    """Return what the daemons say of themselves."""
    urls = []
    if host.master is not None and not host.master.kubeconfig:
        urls.append((MASTER, f"https://{host.master.advertise_address}:{host.master.port}/readyz"))
    urls += [(SDN, f"http://{host.sdn.health_address}/readyz")] if host.sdn is not None else []
    urls += [(AGENT, f"http://{host.agent.health_address}/readyz")] if host.agent is not None else []
    return await asyncio.gather(*(_readiness(daemon, url) for daemon, url in urls))


async def _readiness(daemon: str, url: str) -> Readiness:
    try:
        response = await probes.http_get(url)
    except OSError as error:
        return Readiness(daemon, f"it does not answer at {url} ({error})")
    if response.status == 200:
        return Readiness(daemon)
    words = response.body.decode(errors="replace").split("\n", 1)[0][:300]
    return Readiness(daemon, words or f"{url} answers {response.status}")


# --- the kernel, Open vSwitch and the firewall ------------------------------------------------------------------------


async def kernel(_: Host) -> Kernel:
    """Return the kernel."""
    return Kernel(platform.release())


def _sdn(host: Host) -> SdnSettings:
    if host.sdn is None:
        raise NotObserved(f"{SDN} is not configured on this host")
    return host.sdn


def _agent(host: Host) -> AgentSettings:
    if host.agent is None:
        raise NotObserved(f"{AGENT} is not configured on this host")
    return host.agent


def _not_answering(what: str, error: object, mend: str) -> NotObserved:
    return NotObserved(f"{what} does not answer: {error}", mend, Level.PROBLEM)


async def open_v_switch(host: Host) -> OpenVSwitch:
    """Return Open vSwitch's version and the errors of its ports."""
    rundir = Path(_sdn(host).ovs_rundir)
    try:
        target = _control_socket(rundir)
        first = await run(["ovs-appctl", f"--target={target}", "--timeout=4", "version"], PROGRAM_SECONDS)
    except (OSError, NotObserved) as error:
        raise _not_answering("ovs-vswitchd", error, "systemctl restart openvswitch-switch") from None
    rows = await _ovsdb(rundir, "Interface", "name", "error")
    errors = {row["name"]: row["error"] for row in rows if isinstance(row["error"], str) and row["error"]}
    return OpenVSwitch(first.split("\n", 1)[0].rpartition(" ")[2], errors)


def _control_socket(rundir: Path) -> Path:
    """Return the control socket of ovs-vswitchd. Its name has the process id, unless it was configured."""
    file = rundir / "ovs-vswitchd.pid"
    control = rundir / f"ovs-vswitchd.{file.read_text().strip() if file.exists() else ''}.ctl"
    return control if control.exists() else rundir / "ovs-vswitchd.ctl"


async def _ovsdb(rundir: Path, table: str, *columns: str) -> list[dict[str, Any]]:
    """Return rows of the switch's database. Raises NotObserved."""
    words = [f"--db=unix:{rundir}/db.sock", "--timeout=4", "--format=json", f"--columns={','.join(columns)}"]
    try:
        output = await run(["ovs-vsctl", *words, "list", table], PROGRAM_SECONDS)
    except NotObserved as error:
        raise _not_answering("ovsdb-server", error, "systemctl restart openvswitch-switch") from None
    if not output.strip():
        return []
    listed = msgspec.json.decode(output, type=_Rows)
    return [dict(zip(listed.headings, row, strict=False)) for row in listed.data]


class _Rows(msgspec.Struct):
    """Rows as ovs-vsctl prints them."""

    headings: list[str]
    data: list[list[Any]]


async def datapath(host: Host) -> Datapath:
    """Return the datapath of br0, and on what link the tunnels go."""
    settings = _sdn(host)
    rows = await _ovsdb(Path(settings.ovs_rundir), "Bridge", "name", "datapath_type")
    types = {row["name"]: row["datapath_type"] or "system" for row in rows}
    underlay = next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == settings.node_ip for address in addresses)
        ),
        "",
    )
    return Datapath(
        settings.datapath_type,
        types.get("br0", ""),
        *_modules(),
        underlay,
        types.get(underlay, ""),
    )


def _modules() -> tuple[bool, bool]:
    """Return whether the kernel's module is loaded, and whether there is one to load."""
    folder = Path("/lib/modules") / platform.release() / "kernel/net/openvswitch"
    return Path("/sys/module/openvswitch").exists(), any(folder.glob("openvswitch.ko*"))


async def forward_policy(_: Host) -> Sequence[ForwardChain]:
    """Return the firewalls' base chains for forwarded packets, also those of iptables-legacy."""
    listing = msgspec.json.decode(await run(["nft", "-j", "list", "chains"], PROGRAM_SECONDS), type=_Listing)
    chains = [entry.chain for entry in listing.nftables if entry.chain is not None]
    found = [await _nft_chain(chain) for chain in chains if _is_forward(chain)]
    return (*found, *await _legacy_chains())


class _Chain(msgspec.Struct):
    """A chain as nft lists it."""

    family: str
    table: str
    name: str
    hook: str = ""
    policy: str = "accept"


class _Entry(msgspec.Struct):
    chain: _Chain | None = None


class _Listing(msgspec.Struct):
    nftables: list[_Entry]


def _is_forward(chain: _Chain) -> bool:
    ours = chain.table in {"podlane", "podlane-guard"}
    return chain.hook == "forward" and chain.family in {"ip", "inet"} and not ours


async def _nft_chain(chain: _Chain) -> ForwardChain:
    rules = await run(["nft", "list", "chain", chain.family, chain.table, chain.name], PROGRAM_SECONDS)
    return ForwardChain("nftables", chain.family, chain.table, chain.name, chain.policy, accepts_pods(rules))


async def _legacy_chains() -> tuple[ForwardChain, ...]:
    """Return the chain of iptables-legacy. Without its table in the kernel there is none, and asking would load it."""
    try:
        tables = (PROC / "net/ip_tables_names").read_text().split()
    except OSError:
        return ()
    if "filter" not in tables:
        return ()
    rules = await run(["iptables-legacy", "-w", "3", "-S", "FORWARD"], PROGRAM_SECONDS)
    policy = "drop" if "-P FORWARD DROP" in rules else "accept"
    return (ForwardChain("iptables-legacy", "", "", "FORWARD", policy, accepts_pods(rules)),)


async def sysctls(_: Host) -> Sysctls:
    """Return the sysctls that the pod network needs."""
    names = (
        "net.ipv4.ip_forward",
        "net.ipv4.conf.tun0.forwarding",
        "net.ipv4.conf.tun0.arp_announce",
        "net.netfilter.nf_conntrack_count",
        "net.netfilter.nf_conntrack_max",
    )
    files = {name: PROC / "sys" / name.replace(".", "/") for name in names}
    return Sysctls({name: file.read_text().strip() for name, file in files.items() if file.exists()})


# --- Docker -----------------------------------------------------------------------------------------------------------


class _DockerInfo(msgspec.Struct, rename="pascal"):
    """What Docker says of itself."""

    server_version: str = ""
    driver: str = ""
    cgroup_driver: str = ""
    live_restore_enabled: bool = False
    docker_root_dir: str = ""
    security_options: list[str] | None = None


async def _docker(settings: AgentSettings, path: str) -> bytes | None:
    """Return an answer of Docker; None if there is no such object. Raises NotObserved."""
    mend = "systemctl restart docker || journalctl -u docker -n 20"
    try:
        response = await probes.http_get(f"http://docker{path}", settings.docker_socket, PROGRAM_SECONDS)
    except OSError as error:
        raise _not_answering(f"Docker at {settings.docker_socket}", error, mend) from None
    if response.status not in {200, 404}:
        raise _not_answering(f"Docker at {settings.docker_socket}", f"{path}: status {response.status}", mend)
    return response.body if response.status == 200 else None


async def _docker_info(settings: AgentSettings) -> _DockerInfo:
    return msgspec.json.decode(await _docker(settings, "/info") or b"{}", type=_DockerInfo)


async def docker(host: Host) -> Docker:
    """Return Docker's version and options."""
    settings = _agent(host)
    info = await _docker_info(settings)
    iptables, problem = dockerd_iptables(tuple(_dockerd_arguments(settings.docker_socket)))
    return Docker(
        version=info.server_version,
        storage_driver=info.driver,
        cgroup_driver=info.cgroup_driver,
        live_restore=info.live_restore_enabled,
        root=info.docker_root_dir,
        rootless=any("rootless" in option for option in info.security_options or ()),
        iptables=iptables,
        options_problem=problem,
    )


def _dockerd_arguments(docker_socket: str) -> Iterator[str]:
    """Yield the arguments of the dockerd that listens on a socket: the one with it, or the only one of the machine."""
    running = psutil.process_iter(["name", "cmdline"])
    found = [process.info["cmdline"] or [] for process in running if process.info["name"] == "dockerd"]
    chosen = [words for words in found if any(docker_socket in word for word in words)]
    yield from (chosen or found)[0][1:] if len(chosen or found) == 1 else ()


def dockerd_iptables(arguments: Sequence[str]) -> tuple[bool | None, str]:
    """Return whether dockerd writes rules of iptables, and what is wrong with its configuration file."""
    flags = dict(word.partition("=")[::2] for word in arguments if word.startswith("--"))
    file = Path(flags.get("--config-file", "/etc/docker/daemon.json"))
    document: object = {}
    try:
        document = msgspec.json.decode(file.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError) as error:
        return None, f"Docker's configuration {file} cannot be read: {error}"
    if not isinstance(document, dict):
        return None, f"Docker's configuration {file} is no JSON object"
    if "--iptables" in flags:
        return flags["--iptables"] != "false", ""
    return document.get("iptables") is not False, ""


async def images(host: Host) -> Images:
    """Return whether Docker has the sandbox image."""
    settings = _agent(host)
    found = await _docker(settings, f"/images/{quote(settings.pause_image, safe=':/')}/json")
    return Images(settings.pause_image, found is not None)


async def cgroups(_: Host) -> Cgroups:
    """Return version and controllers of the cgroups."""
    unified = CGROUPS / "cgroup.controllers"
    if unified.exists():
        return Cgroups(2, frozenset(unified.read_text().split()))
    lines = (PROC / "cgroups").read_text().splitlines()[1:]
    return Cgroups(1, frozenset(line.split()[0] for line in lines if line.split()[3] == "1"))


# --- clock, certificates and disks ------------------------------------------------------------------------------------


async def clock(host: Host) -> Clock:
    """Return how far this clock is from the master's, and whether the kernel says that it is synchronized."""
    synchronized = _is_synchronized()
    if host.master is not None:
        return Clock(None, synchronized)
    server = _kubeconfig(host).server
    try:
        return Clock(await probes.seconds_ahead(f"{server}/healthz"), synchronized)
    except OSError as error:
        sentence = f"the clock was not compared with the master's: {server}: {error}"
        raise NotObserved(sentence, f"curl -k {server}/healthz") from None


def _is_synchronized() -> bool | None:
    """Return whether the kernel's clock is synchronized; None if it does not say (adjtimex(2))."""
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


def _kubeconfig(host: Host) -> Kubeconfig:
    """Return the first kubeconfig of this host that can be read. Raises NotObserved."""
    files = list(host.node_kubeconfigs)
    if host.master is not None:
        files.insert(0, host.master.administrator)
    problems = []
    for file in files:
        try:
            return load_administrator(file)
        except BadKubeconfig as error:
            problems.append(str(error))
    mend = "podlane node add NAME --out FILE  # on the master, then copy FILE to this host"
    raise NotObserved("; ".join(problems) or "no kubeconfig is configured", mend, Level.PROBLEM)


async def certificates(host: Host) -> Certificates:
    """Return when the certificates of this host end."""
    ends = await asyncio.to_thread(lambda: tuple(_certificate_ends(host)))
    return Certificates(datetime.now(UTC), ends)


def _certificate_ends(host: Host) -> Iterator[CertificateEnd]:
    # It takes 8 MB and a tenth of a second, which other commands should not pay.
    from api.pki.keys import parse_certificate  # noqa: PLC0415
    from api.pki.pem import BadPem  # noqa: PLC0415

    for file, mend in _certificate_files(host):
        try:
            pem = Path(file).read_bytes() if not file.endswith("kubeconfig") else Kubeconfig.load(file).certificate
            if pem:
                yield CertificateEnd(file, parse_certificate(pem).not_after, mend)
        except (OSError, BadKubeconfig, BadPem):
            continue  # The daemons report files that are needed and cannot be read.


def _certificate_files(host: Host) -> Iterator[tuple[str, str]]:
    renew = f"systemctl restart {AGENT} && journalctl -t {AGENT} -p warning -n 20"
    if host.master is not None:
        yield (
            f"{host.master.state_dir}/pki/ca.crt",
            "openssl x509 -noout -enddate -in " + host.master.state_dir + "/pki/ca.crt",
        )
        yield f"{host.master.state_dir}/admin.kubeconfig", f"systemctl restart {MASTER}"
    for file in host.node_kubeconfigs:
        yield file, renew
    if host.agent is not None:
        for name in ("serving.pem", "serving-self-signed.pem"):
            yield f"{host.agent.state_dir}/pki/{name}", renew


async def disks(host: Host) -> Sequence[Disk]:
    """Return the disks of the node: that of the pods' volumes and that of Docker."""
    settings = _agent(host)
    paths = [settings.state_dir]
    try:
        paths.append((await _docker_info(settings)).docker_root_dir)
    except (NotObserved, msgspec.DecodeError):
        paths.append("/var/lib/docker")  # The check of Docker reports it.
    return await asyncio.to_thread(_disks, paths)


def _disks(paths: Sequence[str]) -> tuple[Disk, ...]:
    """Return the disks of paths, each once. A path that does not exist has none."""
    by_device = {Path(path).stat().st_dev: path for path in reversed(paths) if path and Path(path).exists()}
    return tuple(_disk(path) for path in sorted(by_device.values()))


def _disk(path: str) -> Disk:
    usage = shutil.disk_usage(path)
    return Disk(path, usage.total, usage.free)


async def store(host: Host) -> Store:
    """Return the size of the master's store."""
    if host.master is None:
        raise NotObserved(f"{MASTER} is not configured on this host")
    return await asyncio.to_thread(_store, Path(host.master.state_dir) / "store.db")


def _store(file: Path) -> Store:
    if not file.exists():
        raise NotObserved(f"there is no {file} yet", f"systemctl enable --now {MASTER}")
    parts = [file, *file.parent.glob("store.db-*")]
    return Store(str(file), sum(part.stat().st_size for part in parts), _disk(str(file.parent)))


# --- other hosts ------------------------------------------------------------------------------------------------------


async def ports(host: Host) -> Ports:
    """Return whether ports of other hosts answer: from a node those of the master, from the master those of nodes."""
    targets: list[tuple[str, str, int]] = []
    if host.master is not None:
        targets += await _agent_ports(host)
    if host.node_kubeconfigs:
        server = urlsplit(_kubeconfig(host).server)
        targets.append(("the master", server.hostname or "", server.port or 443))
    if host.agent is not None:
        targets.append(("the node agent of this host", host.agent.node_ip, host.agent.port))
    problems = await asyncio.gather(*(probes.tcp_problem(address, port) for _, address, port in targets))
    return Ports(tuple(Port(*target, problem) for target, problem in zip(targets, problems, strict=True)))


async def _agent_ports(host: Host) -> list[tuple[str, str, int]]:
    listed = await _list_nodes(host)
    chosen = random.sample(listed, min(MAX_NODES, len(listed)))
    return [
        (f"the node agent of {node.metadata.name}", address.address, _agent_port(node))
        for node in chosen
        for address in node.status.addresses
        if address.type == "InternalIP" and _agent_port(node)
    ]


def _agent_port(node: Node) -> int:
    """Return the port that a node reports; 0 if it reports none."""
    endpoints = node.status.daemon_endpoints
    return endpoints.kubelet_endpoint.port if endpoints is not None and endpoints.kubelet_endpoint is not None else 0


async def _list_nodes(host: Host) -> list[Node]:
    kubeconfig = _kubeconfig(host)
    try:
        async with Client(kubeconfig) as client:
            return list((await client.list(Node)).items)
    except (ClientError, BadKubeconfig) as error:
        raise _not_answering("the master", error, f"journalctl -u {MASTER} -n 20") from None


async def nodes(host: Host) -> Nodes:
    """Return the nodes and those of their conditions that report a problem."""
    return Nodes(tuple(map(_summary, await _list_nodes(host))))


def _summary(node: Node) -> NodeSummary:
    conditions = {condition.type: condition for condition in node.status.conditions}
    ready = conditions.get("Ready")
    return NodeSummary(
        node.metadata.name,
        ready is not None and ready.status == "True",
        "it has not reported yet" if ready is None else ready.message or ready.reason,
        {
            name: condition.message
            for name, condition in conditions.items()
            if condition.status == "True" and (name in _PROBLEM_CONDITIONS or name.startswith("podlane.io/"))
        },
    )


async def _network_status(settings: SdnSettings) -> NetworkStatus:
    """Return the status of the pod network. Raises NotObserved."""
    mend = f"journalctl -t {SDN} -p warning -n 20"
    try:
        response = await probes.http_get("http://sdn/STATUS", settings.socket)
        if response.status == 200:
            return msgspec.json.decode(response.body, type=NetworkStatus)
        problem = msgspec.json.decode(response.body, type=AttachError).msg
    except (OSError, msgspec.DecodeError) as error:
        problem = str(error)
    raise NotObserved(f"not looked at, because {SDN} is not ready: {problem}", mend)


async def tunnels(host: Host) -> Tunnels:
    """Return whether packets of the smallest size and of the pods' MTU come back through the tunnels."""
    settings = _sdn(host)
    status = await _network_status(settings)
    try:
        async with Client(Kubeconfig.load(settings.kubeconfig)) as client:
            listed = (await client.list(HostSubnet)).items
    except (ClientError, BadKubeconfig) as error:
        raise NotObserved(f"the peers are not known: {error}", f"journalctl -t {SDN} -p warning -n 20") from None
    peers = [each for each in listed if each.subnet and each.host != settings.node_name]
    chosen = random.sample(peers, min(MAX_PEERS, len(peers)))
    try:
        async with IcmpEcho(IPv4Address(status.gateway)) as echo:
            found = await asyncio.gather(*(_peer(echo, each, status.mtu) for each in chosen))
    except Refused as error:
        raise NotObserved(f"the tunnels were not tried: {error}", "sudo podlane doctor") from None
    return Tunnels(status.mtu, tuple(found), len(peers))


async def _peer(echo: IcmpEcho, subnet: HostSubnet, mtu: int) -> Peer:
    gateway = str(IPv4Address(int(IPv4Address(subnet.subnet.partition("/")[0])) + 1))
    small = await _echoes(echo, gateway, 0)
    full = small and await _echoes(echo, gateway, mtu)
    answers = small or await probes.tcp_problem(subnet.host_ip, 10250) in {"", REFUSED}
    return Peer(subnet.host, subnet.host_ip, small, full, answers)


async def _echoes(echo: IcmpEcho, target: str, size: int) -> bool:
    for _ in range(ECHO_ATTEMPTS):
        if await echo.milliseconds(target, ECHO_SECONDS, size) is not None:
            return True
    return False


async def name_servers(host: Host) -> NameServers:
    """Return whether the cluster's name server and those of the host answer."""
    settings = _sdn(host)
    servers = _name_servers(Path(settings.resolv_conf))
    answers = await asyncio.gather(*map(probes.upstream_problem, servers))
    gateway, problem = "", ""
    if settings.cluster_domain:
        gateway = (await _network_status(settings)).gateway
        problem = await probes.dns_problem(gateway, f"kubernetes.default.svc.{settings.cluster_domain}")
    return NameServers(gateway, problem, settings.resolv_conf, dict(zip(servers, answers, strict=True)))


def _name_servers(file: Path) -> list[str]:
    """Return the servers of a resolv.conf; resolvers use the first three."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise NotObserved(f"{file} cannot be read: {error}", f"editor {file}", Level.PROBLEM) from None
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"][:3]
