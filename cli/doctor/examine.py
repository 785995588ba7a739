"""All checks, and how they are run: beside each other, each with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from api.client.kubeconfig import BadKubeconfig
from cli.doctor import checks, gather
from cli.doctor.host import AGENT, MASTER, SDN, Host
from cli.doctor.observations import Finding, Level, NotObserved

O = TypeVar("O")

TIME_LIMIT_SECONDS = 15.0
EVERYWHERE = frozenset({MASTER, SDN, AGENT})


class Check(NamedTuple):
    """A check: its name, which stays the same, what it looks at, and the daemons whose hosts it is for."""

    name: str
    what: str
    daemons: frozenset[str]
    examine: Callable[[Host], Awaitable[tuple[Finding, ...]]]


def _check(
    name: str,
    what: str,
    observe: Callable[[Host], Awaitable[O]],
    judge: Callable[[O], Iterator[Finding]],
    *daemons: str,
) -> Check:
    async def examine(host: Host) -> tuple[Finding, ...]:
        return tuple(judge(await observe(host)))

    return Check(name, what, frozenset(daemons) or EVERYWHERE, examine)


CHECKS = (
    _check("configuration", "what the daemons say of their files", gather.configuration, checks.configuration),
    _check("units", "units of systemd", gather.units, checks.units),
    _check("daemons", "readiness of the daemons", gather.daemons, checks.daemons),
    _check("kernel", "version of the kernel", gather.kernel, checks.kernel),
    _check("openvswitch", "Open vSwitch and its ports", gather.open_v_switch, checks.open_v_switch, SDN),
    _check("datapath", "datapath in the kernel or in user space", gather.datapath, checks.datapath, SDN),
    _check(
        "forward-policy", "firewalls that drop forwarded packets", gather.forward_policy, checks.forward_policy, SDN
    ),
    _check("sysctls", "sysctls and tracked connections", gather.sysctls, checks.sysctls, SDN),
    _check("docker", "version and options of Docker", gather.docker, checks.docker, AGENT),
    _check("images", "the sandbox image", gather.images, checks.images, AGENT),
    _check("cgroups", "version and controllers of cgroups", gather.cgroups, checks.cgroups, AGENT),
    _check("disk", "free space", gather.disks, checks.disks, AGENT),
    _check("clock", "this clock and the master's", gather.clock, checks.clock),
    _check("certificates", "ends of certificates", gather.certificates, checks.certificates),
    _check("ports", "ports between hosts", gather.ports, checks.ports),
    _check("tunnels", "tunnels to peers, and their MTU", gather.tunnels, checks.tunnels, SDN),
    _check("dns", "name servers", gather.name_servers, checks.name_servers, SDN),
    _check("store", "the master's store and its disk", gather.store, checks.store, MASTER),
    _check("nodes", "nodes and their conditions", gather.nodes, checks.nodes, MASTER),
)


async def examine(
    host: Host,
    on_done: Callable[[str], None],
    all_checks: tuple[Check, ...] = CHECKS,
    seconds: float = TIME_LIMIT_SECONDS,
) -> tuple[Finding, ...]:
    """Return the findings of all checks that are for this host, in their order. `on_done` gets the name of each."""

    async def one(check: Check) -> tuple[Finding, ...]:
        found = await examine_one(check, host, seconds)
        on_done(check.name)
        return found

    chosen = [check for check in all_checks if check.daemons & set(host.daemons)]
    return tuple(finding for found in await asyncio.gather(*map(one, chosen)) for finding in found)


async def examine_one(check: Check, host: Host, seconds: float) -> tuple[Finding, ...]:
    """Return the findings of a check. What cannot be looked at is a finding, too."""
    try:
        async with asyncio.timeout(seconds):
            return await check.examine(host)
    except NotObserved as error:
        level, sentence, command = error.level, str(error), error.command
    except TimeoutError:
        level, sentence, command = Level.PROBLEM, f"{check.what}: not known after {seconds:g} s", "uptime"
    except BadKubeconfig as error:
        level, sentence, command = Level.PROBLEM, str(error), "podlane node add NAME --out FILE  # on the master"
    except msgspec.DecodeError as error:
        level, sentence, command = (
            Level.PROBLEM,
            f"{check.what}: an answer was not understood: {error}",
            "podlane bundle",
        )
    except PermissionError as error:
        sentence = f"{check.what}: {error.filename or 'it'} may be read by root only"
        level, command = Level.WARNING, "sudo podlane doctor"
    except OSError as error:
        level, sentence, command = Level.PROBLEM, f"{check.what}: {error}", "dmesg | tail"
    return (Finding(check.name, level, sentence, command),)
