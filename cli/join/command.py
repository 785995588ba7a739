"""`podlane join`: checks the host, makes it a node of the cluster, and restores it if that fails."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from api.client.bootstrap import token_kubeconfig
from api.client.client import ApiError, Client, ClientError, NotFound, Unreachable
from api.client.discovery import ClusterInfo, fetch_accepted, fetch_verified
from api.client.kubeconfig import BadKubeconfig, Kubeconfig
from api.core.certificates import (
    APPROVED,
    DENIED,
    FAILED,
    KUBELET_CLIENT_SIGNER,
    NODE_USER_PREFIX,
    CertificateSigningRequest,
    csr_condition,
)
from api.core.node import Node
from api.network.types import ClusterNetwork
from api.pki import keys
from api.pki.pem import BadPem
from cli import object_names
from cli.command import UsageError, positive_number
from cli.join import checks, journal, settings
from cli.join.host import UNITS, Host, HostError
from cli.join.journal import Journal
from cli.join.settings import BadSettings, NodeFiles
from lab.images import PAUSE
from lab.process import Progress

SDN_CONFIG, AGENT_CONFIG = "/etc/podlane/sdn.yaml", "/etc/podlane/node-agent.yaml"
POLL_SECONDS = 0.25
DEFAULT_TIMEOUT_SECONDS = 300.0
UNAUTHORIZED = 401
MAX_TOKEN_BYTES = 1000


class JoinError(Exception):
    """A join that was refused or that failed; `str(error)` says why, and what was changed."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a join. An empty `name` is that of the host; without `address` the route decides."""

    server: str
    token: str
    hashes: tuple[str, ...]
    name: str = ""
    address: IPv4Address | None = None
    timeout: float = DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Plan:
    """A join that may begin: who joins which cluster, and the files of the daemons."""

    server: str
    ca: bytes
    token: str
    name: str
    address: IPv4Address
    files: NodeFiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane join`."""
    parser.add_argument("server", metavar="URL", help="the master, https://HOST:PORT")
    parser.add_argument(
        "--token",
        metavar="ID.SECRET",
        required=True,
        help="token of `podlane node token`; -: from standard input, as others see the arguments",
    )
    parser.add_argument(
        "--ca-hash",
        metavar="HASH",
        action="append",
        required=True,
        help="sha256: and the hash of the public key of the cluster's authority; several are accepted",
    )
    parser.add_argument("--name", metavar="NAME", type=object_names.node, help="name of the node (that of the host)")
    parser.add_argument(
        "--address", metavar="IP", type=_address, help="address of the node (the one from which it reaches the master)"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_number,
        default=DEFAULT_TIMEOUT_SECONDS,
        help="seconds to wait for the approval and for the node to be Ready (%(default)g)",
    )


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IPv4 address") from None


def join_command(arguments: argparse.Namespace) -> int:
    """Join. Returns the exit code. Raises UsageError, JoinError and HostError."""
    server, hashes = arguments.server.rstrip("/"), tuple(dict.fromkeys(arguments.ca_hash))
    token = _token_of_stdin() if arguments.token == "-" else arguments.token
    if problems := [*checks.argument_problems(server, token, hashes)]:
        raise UsageError("\n".join(problems))
    request = Request(server, token, hashes, arguments.name or "", arguments.address, arguments.timeout)
    join(request, Host(), Progress())
    return 0


def _token_of_stdin() -> str:
    """Return the first line of standard input."""
    return sys.stdin.buffer.readline(MAX_TOKEN_BYTES).decode(errors="replace").strip()


def join(request: Request, host: Host, progress: Callable[[str], None]) -> None:
    """Make a host a node of a cluster. Raises JoinError and HostError; then the host is what it was before."""
    if not host.is_root():
        raise JoinError("this changes the host; run it as root")
    with host.exclusive(), _interruptible():
        interrupted = journal.load(host)
        plan, is_same = _check(request, host, interrupted)
        if interrupted is not None and not is_same:
            progress(f"undoing the join of {interrupted.name} to {interrupted.server}, which was interrupted")
            if remains := _undone(host, interrupted):
                raise JoinError(_listed("the join before was not undone", remains))
        if not is_same and _is_joined(plan, host):
            progress(f"this host is the node {plan.name} of {plan.server} already")
            return
        progress(f"{'continuing' if is_same else 'joining'} as node {plan.name} with the address {plan.address}")
        record = interrupted if interrupted is not None and is_same else _record(plan, host)
        try:
            _change(plan, host, progress)
            asyncio.run(_wait_until_ready(plan, host, request.timeout, progress))
            host.remove(plan.files.bootstrap_kubeconfig)
            host.remove(journal.FILE)
        except (JoinError, HostError, BadSettings, ClientError, BadKubeconfig, BadPem, KeyboardInterrupt) as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            progress("undoing the join")
            raise JoinError(_listed(f"{reason}; the join was undone", _undone(host, record))) from None
        progress(f"node {plan.name} is Ready")


def _listed(text: str, remains: Iterable[str]) -> str:
    lines = list(remains)
    return "\n".join((f"{text}, but:" if lines else text, *(f"  {line}" for line in lines)))


def _undone(host: Host, record: Journal) -> list[str]:
    """Undo a join; signals wait meanwhile. Returns what remains."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        return list(journal.undo(host, record))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM and SIGHUP, as of a lost terminal, end the block like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS[1:]}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- checks: nothing is changed ---------------------------------------------------------------------------------------


def _check(request: Request, host: Host, interrupted: Journal | None) -> tuple[Plan, bool]:
    """Return the plan of a join, and whether it continues the interrupted one. Raises JoinError with all problems."""
    name = request.name or host.hostname()
    problems = [*host.missing(), *checks.name_problems(name, "--name" if request.name else "the name of this host")]
    try:
        files = read_files(host)
    except (BadSettings, HostError) as error:
        raise _refusal([*problems, str(error)]) from None
    problems += host.not_running(files.docker_socket, files.ovs_rundir)
    if files.pause_image == PAUSE and not host.can_make_sandbox_image():
        problems.append("catatonit is not installed, from which the sandbox image is made: apt-get install catatonit")
    parts = urlsplit(request.server)
    address = request.address or host.source_address(parts.hostname or "", parts.port or 443)
    links = host.links()
    problems += checks.address_problems(address, links)
    is_same = interrupted is not None and interrupted.is_same_join(request.server, name, str(address))
    try:
        cluster = asyncio.run(_discover(request))
        plan = Plan(request.server, cluster.ca, request.token, name, address, files)
        node, network = asyncio.run(_read_cluster(plan))
    except (ClientError, BadKubeconfig, BadPem, _Problems) as error:
        raise _refusal([*problems, *str(error).splitlines()]) from None
    problems += checks.network_conflicts(network, address, links, host.routes())
    if not is_same and not host.path(files.kubeconfig).exists():
        problems += checks.name_conflicts(name, address, node)
    if problems:
        raise _refusal(problems)
    return plan, is_same


class _Problems(Exception):
    """Sentences about a cluster that cannot be joined, one in each line."""


def _refusal(problems: list[str]) -> JoinError:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return JoinError("\n".join((f"{count}, nothing was changed", *(f"  {problem}" for problem in problems))))


def read_files(host: Host) -> NodeFiles:
    """Return the files that the configuration of the daemons names. Raises BadSettings and HostError."""
    sdn = settings.read(host.read(SDN_CONFIG), SDN_CONFIG)
    agent = settings.read(host.read(AGENT_CONFIG), AGENT_CONFIG)
    return settings.node_files(sdn, agent, PAUSE)


async def _discover(request: Request) -> ClusterInfo:
    """Return the authorities of the cluster, over a verified connection. Raises ClientError and _Problems."""
    accepted = await fetch_accepted(request.server, request.hashes)
    now = datetime.datetime.now(datetime.UTC)
    if problems := [*checks.clock_problems(now, accepted.server_time, accepted.certificates)]:
        raise _Problems("\n".join(problems))
    return await fetch_verified(Kubeconfig(request.server, accepted.ca))


async def _read_cluster(plan: Plan) -> tuple[Node | None, ClusterNetwork]:
    """Return the Node of the name, None if there is none, and the networks of the cluster. Raises ClientError."""
    async with Client(Kubeconfig(plan.server, plan.ca, token=plan.token)) as client:
        try:
            network = await client.get(ClusterNetwork, "default")
        except ApiError as error:
            if error.status.code != UNAUTHORIZED:
                raise
            accepted = "`podlane node token` on the master makes a new one"
            raise _Problems(
                f"the token is not accepted: it has expired, was deleted, or is mistyped; {accepted}"
            ) from None
        try:
            return await client.get(Node, plan.name), network
        except NotFound:
            return None, network


def _is_joined(plan: Plan, host: Host) -> bool:
    """Return whether this host is a node of the cluster. Raises JoinError if it is, or was, a node otherwise."""
    path = host.path(plan.files.kubeconfig)
    if not path.exists():
        return False
    reset = "`podlane node reset --yes` makes this host leave its cluster; then join again"
    try:
        kubeconfig = Kubeconfig.load(path)
        certificate = keys.parse_certificate(kubeconfig.certificate)
        known = keys.certificates_by_key_hash(kubeconfig.ca).keys() & keys.certificates_by_key_hash(plan.ca).keys()
    except (BadKubeconfig, BadPem) as error:
        raise JoinError(f"{plan.files.kubeconfig} is there, and not that of a node: {error}. {reset}") from None
    name = certificate.subject.user.removeprefix(NODE_USER_PREFIX)
    if not known:
        raise JoinError(f"this host is the node {name} of another cluster, {kubeconfig.server}. {reset}")
    if name != plan.name:
        raise JoinError(f"this host is the node {name} of this cluster; {plan.name} was asked for. {reset}")
    if _has_expired(path):
        return False
    try:
        asyncio.run(_get_node(path, name))
    except Unreachable as error:
        raise JoinError(str(error)) from None
    except ClientError as error:
        raise JoinError(f"this host was the node {name}, which the cluster does not accept: {error}. {reset}") from None
    return True


def _has_expired(kubeconfig: Path) -> bool:
    """Return whether there is a kubeconfig whose certificate has expired. Raises BadKubeconfig and BadPem."""
    if not kubeconfig.exists():
        return False
    certificate = keys.parse_certificate(Kubeconfig.load(kubeconfig).certificate)
    return certificate.not_after <= datetime.datetime.now(datetime.UTC)


# --- changes ----------------------------------------------------------------------------------------------------------


def _record(plan: Plan, host: Host) -> Journal:
    """Write down what is there before the join. Raises HostError."""
    files = plan.files
    needs_image = files.pause_image == PAUSE and not host.has_image(files.docker_socket, PAUSE)
    names = (SDN_CONFIG, AGENT_CONFIG, files.bootstrap_kubeconfig, files.kubeconfig)
    record = Journal(
        server=plan.server,
        name=plan.name,
        address=str(plan.address),
        kubeconfig=files.kubeconfig,
        docker_socket=files.docker_socket,
        loaded_image=PAUSE if needs_image else "",
        files={name: host.file_state(name) for name in names},
        units={unit: host.unit_state(unit) for unit in UNITS},
    )
    journal.save(host, record)
    return record


def _change(plan: Plan, host: Host, progress: Callable[[str], None]) -> None:
    """Configure and start the daemons. A second call changes nothing more. Raises HostError and BadSettings."""
    files = plan.files
    progress(f"writing {SDN_CONFIG} and {AGENT_CONFIG}")
    identity = {"nodeName": plan.name, "nodeIp": str(plan.address), "kubeconfig": files.kubeconfig}
    host.write(SDN_CONFIG, settings.with_settings(host.read(SDN_CONFIG), identity, SDN_CONFIG), 0o644)
    agent = {**identity, "bootstrapKubeconfig": files.bootstrap_kubeconfig}
    host.write(AGENT_CONFIG, settings.with_settings(host.read(AGENT_CONFIG), agent, AGENT_CONFIG), 0o644)
    host.write(files.bootstrap_kubeconfig, token_kubeconfig(Kubeconfig(plan.server, plan.ca, token=plan.token)))
    if files.pause_image == PAUSE:
        progress(f"loading the sandbox image {PAUSE}")
        host.load_sandbox_image(files.docker_socket)
    if _has_expired(host.path(files.kubeconfig)):
        host.remove(files.kubeconfig)
    for unit in UNITS:
        progress(f"starting {unit}")
        host.start(unit)


async def _wait_until_ready(plan: Plan, host: Host, seconds: float, progress: Callable[[str], None]) -> None:
    """Wait until the node is Ready. Raises JoinError and HostError."""
    end, reported = time.monotonic() + seconds, ""
    while state := await _state(plan, host):
        if state != reported:
            progress(state)
            reported = state
        for unit in UNITS:
            if problem := host.unit_problem(unit):
                raise JoinError(f"{unit} is {problem}; journalctl -u {unit} -n 20 says why")
        if time.monotonic() > end:
            look = "journalctl -t podlane-sdn -t podlane-node-agent -n 40 says more"
            raise JoinError(f"the node was not Ready within {seconds:g} s: {state}; {look}")
        await asyncio.sleep(POLL_SECONDS)


async def _state(plan: Plan, host: Host) -> str:
    """Return what the node waits for, empty if it is Ready. Raises JoinError if waiting is of no use."""
    kubeconfig = host.path(plan.files.kubeconfig)
    try:
        if not await asyncio.to_thread(kubeconfig.exists):
            return await _request_state(plan)
        node = await _get_node(kubeconfig, plan.name)
    except NotFound:
        return "the node has a certificate; waiting until it registers"
    except Unreachable as error:
        return str(error)
    except (ApiError, BadKubeconfig) as error:
        raise JoinError(str(error)) from None
    addresses = {each.address for each in node.status.addresses if each.type == "InternalIP"}
    if addresses and str(plan.address) not in addresses:
        found = ", ".join(sorted(addresses))
        raise JoinError(
            f"another host with the address {found} has joined as {plan.name}; --name gives this one another"
        )
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    if ready is not None and ready.status == "True":
        return ""
    return f"the node is not Ready: {ready.message}" if ready is not None else "waiting until the node reports"


async def _get_node(kubeconfig: Path, name: str) -> Node:
    async with Client(Kubeconfig.load(kubeconfig)) as client:
        return await client.get(Node, name)


async def _request_state(plan: Plan) -> str:
    """Return what the request for the node's certificate waits for. Raises JoinError if it was denied."""
    async with Client(Kubeconfig(plan.server, plan.ca, token=plan.token)) as client:
        requests = [csr for csr in (await client.list(CertificateSigningRequest)).items if _is_of(csr, plan)]
    if not requests:
        return "waiting until the agent requests a certificate"
    newest = max(requests, key=lambda csr: csr.metadata.creation_timestamp or "")
    for condition_type in (DENIED, FAILED):
        if condition := csr_condition(newest, condition_type):
            reason = f"{condition.reason}: {condition.message}".strip(": ")
            raise JoinError(f"certificate request {newest.metadata.name} was {condition_type.lower()} ({reason})")
    if not csr_condition(newest, APPROVED):
        return f"waiting for approval; on the master: kubectl certificate approve {newest.metadata.name}"
    return "waiting for the certificate of the node"


def _is_of(csr: CertificateSigningRequest, plan: Plan) -> bool:
    """Return whether a request is for the certificate of this node, and was made with this token."""
    if csr.spec.signer_name != KUBELET_CLIENT_SIGNER:
        return False
    if csr.spec.username != f"system:bootstrap:{plan.token.partition('.')[0]}":
        return False
    try:
        return keys.parse_request(csr.spec.request).subject.user == f"{NODE_USER_PREFIX}{plan.name}"
    except BadPem:
        return False
