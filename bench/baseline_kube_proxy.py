"""The rules that kube-proxy gives to iptables-restore: a chain for each service and for each endpoint."""

from __future__ import annotations

import subprocess
from base64 import b32encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from sdn.model.service_port import EndpointInfo, ServicePortInfo

_HEAD = """\
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
"""
_HOOKS = "-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n"


def whole(ports: Iterable[ServicePortInfo]) -> str:
    """Return the rules of all services, as at the start."""
    served = list(ports)
    chains = "".join(_declared(port) for port in served)
    return f"*nat\n{_HEAD}{chains}{_HOOKS}{_entries(served)}{''.join(map(_rules, served))}COMMIT\n"


def changed(ports: Sequence[ServicePortInfo], before: ServicePortInfo, after: ServicePortInfo) -> str:
    """Return the rules after a change: the chains of that service, and the list of all services."""
    gone = _endpoint_chains(before).keys() - _endpoint_chains(after).keys()
    ended = "".join(f":{chain} - [0:0]\n" for chain in gone)
    removed = "".join(f"-X {chain}\n" for chain in gone)
    return f"*nat\n{_HEAD}{_declared(after)}{ended}{_entries(ports)}{_rules(after)}{removed}COMMIT\n"


def restore(namespace: str, text: str) -> None:
    """Load rules in a network namespace."""
    command = ["nsenter", f"--net=/run/netns/{namespace}", "iptables-restore", "-w", "5", "--noflush", "--counters"]
    subprocess.run(command, input=text, text=True, check=True)


def clear(namespace: str) -> None:
    """Remove all NAT rules of iptables."""
    for word in ("-F", "-X"):
        subprocess.run(["nsenter", f"--net=/run/netns/{namespace}", "iptables", "-t", "nat", word], check=True)


def _entries(ports: Iterable[ServicePortInfo]) -> str:
    return "".join(
        f'-A KUBE-SERVICES -m comment --comment "{_name(port)} cluster IP" -m udp -p udp -d {port.cluster_ip}/32 '
        f"--dport {port.port} -j {_chain('SVC', _name(port))}\n"
        for port in ports
    )


def _declared(port: ServicePortInfo) -> str:
    return "".join(f":{chain} - [0:0]\n" for chain in (_chain("SVC", _name(port)), *_endpoint_chains(port)))


def _rules(port: ServicePortInfo) -> str:
    chain, name, left = _chain("SVC", _name(port)), _name(port), len(port.internal_endpoints)
    lines = [
        f'-A {chain} -m comment --comment "{name} cluster IP" -m udp -p udp -d {port.cluster_ip}/32 '
        f"--dport {port.port} ! -s 10.128.0.0/14 -j KUBE-MARK-MASQ"
    ]
    for own, backend in _endpoint_chains(port).items():
        chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
        target = f"{backend.address}:{backend.port}"
        lines += [
            f'-A {chain} -m comment --comment "{name} -> {target}" {chance}-j {own}',
            f'-A {own} -m comment --comment "{name}" -s {backend.address}/32 -j KUBE-MARK-MASQ',
            f'-A {own} -m comment --comment "{name}" -m udp -p udp -j DNAT --to-destination {target}',
        ]
        left -= 1
    return "".join(f"{line}\n" for line in lines)


def _endpoint_chains(port: ServicePortInfo) -> dict[str, EndpointInfo]:
    return {
        _chain("SEP", f"{_name(port)}{endpoint.address}:{endpoint.port}"): endpoint
        for endpoint in port.internal_endpoints
    }


def _chain(kind: str, name: str) -> str:
    return f"KUBE-{kind}-{b32encode(sha256(name.encode()).digest()).decode()[:16]}"


def _name(port: ServicePortInfo) -> str:
    return f"{port.key.namespace}/{port.key.service}"
