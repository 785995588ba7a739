"""What the checks find in observations: each function judges one subject. Pure.

A sentence says what was found. The command of a finding mends it, or shows what has to be mended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta

from cli.doctor.observations import (
    Certificates,
    Cgroups,
    Clock,
    Configuration,
    Datapath,
    Disk,
    Docker,
    Finding,
    ForwardChain,
    Images,
    Kernel,
    Level,
    NameServers,
    Nodes,
    OpenVSwitch,
    Peer,
    Ports,
    Readiness,
    Store,
    Sysctls,
    Tunnels,
    Unit,
)

OLDEST_KERNEL, OLDEST_OVS = (5, 10), (2, 15)
"""Of Debian 11. Older versions are not tried; Debian 12 has 6.1 and 3.1."""

CONTROLLERS = ("cpu", "memory", "pids")
MAX_AHEAD_SECONDS = 5.0
RENEWAL_DUE, EXPIRES_SOON = timedelta(days=14), timedelta(days=3)
MIN_FREE = 0.10
"""Part of a disk below which the node agent evicts pods (evictionHard)."""

MAX_CONNTRACK = 0.9
REFUSED = "refused"
"""The problem of a port whose host answers, but where nothing listens."""

MAX_SHOWN = 5
"""Peers, nodes and ports that one sentence names."""


def _ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_SHOWN
    return ", ".join(names[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def configuration(found: Sequence[Configuration]) -> Iterator[Finding]:
    """Judge the configurations of the daemons."""
    for each in found:
        command = f"{each.daemon} --config {each.file} --check"
        for problem in each.problems:
            yield Finding("configuration", Level.PROBLEM, f"{each.file}: {problem}", command)
        if not each.problems:
            yield _ok("configuration", f"{each.daemon} accepts {each.file}")


def units(found: Sequence[Unit]) -> Iterator[Finding]:
    """Judge systemd's units."""
    for unit in found:
        state = f"{unit.active} ({unit.sub})"
        if unit.load != "loaded":
            yield Finding("units", Level.PROBLEM, f"{unit.name} is {unit.load}", f"systemctl status {unit.name}")
        elif unit.active != "active":
            mend = f"systemctl restart {unit.name} || journalctl -u {unit.name} -n 20"
            yield Finding("units", Level.PROBLEM, f"{unit.name} is {state}", mend)
        elif unit.enabled == "disabled":
            found_state = f"{unit.name} runs, but does not start with the host"
            yield Finding("units", Level.WARNING, found_state, f"systemctl enable {unit.name}")
        elif unit.restarts:
            found_state = f"{unit.name} is {state}, after {unit.restarts} restarts by systemd"
            yield Finding("units", Level.WARNING, found_state, f"journalctl -u {unit.name} -p warning -n 20")
        else:
            yield _ok("units", f"{unit.name} is {state}")


def daemons(found: Sequence[Readiness]) -> Iterator[Finding]:
    """Judge what the daemons say of themselves."""
    for each in found:
        if each.problem:
            sentence = f"{each.daemon} is not ready: {each.problem}"
            yield Finding("daemons", Level.PROBLEM, sentence, f"journalctl -t {each.daemon} -p warning -n 20")
        else:
            yield _ok("daemons", f"{each.daemon} is ready")


def kernel(found: Kernel) -> Iterator[Finding]:
    """Judge the version of the kernel."""
    if _version(found.release) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        sentence = f"the kernel is {found.release}; {oldest} is the oldest that is supported"
        yield Finding("kernel", Level.WARNING, sentence, "apt-get install linux-image-amd64 && systemctl reboot")
    else:
        yield _ok("kernel", f"the kernel is {found.release}")


def open_v_switch(found: OpenVSwitch) -> Iterator[Finding]:
    """Judge Open vSwitch."""
    if _version(found.version) < OLDEST_OVS:
        oldest = ".".join(map(str, OLDEST_OVS))
        sentence = f"Open vSwitch is {found.version}; {oldest} is the oldest that is supported"
        yield Finding("openvswitch", Level.WARNING, sentence, "apt-get install openvswitch-switch")
    else:
        yield _ok("openvswitch", f"Open vSwitch is {found.version}")
    for port, error in sorted(found.port_errors.items()):
        sentence = f"the switch cannot have the port {port}: {error}"
        yield Finding("openvswitch", Level.PROBLEM, sentence, f"ovs-vsctl --columns=name,error list Interface {port}")


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; what has none is taken for the newest."""
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", text)
    return tuple(map(int, numbers.groups())) if numbers else (1 << 31,)


def datapath(found: Datapath) -> Iterator[Finding]:
    """Judge the datapath of br0."""
    load = "modprobe openvswitch && systemctl restart openvswitch-switch podlane-sdn"
    if found.setting == "system" and not found.has_module:
        mend = load if found.module_file else "sed -i 's/^datapathType:.*/datapathType: netdev/' /etc/podlane/sdn.yaml"
        yield Finding(
            "datapath", Level.PROBLEM, "datapathType is system, but the kernel has no module openvswitch", mend
        )
        return
    if not found.found:
        yield Finding("datapath", Level.PROBLEM, "there is no bridge br0", "journalctl -t podlane-sdn -n 20")
        return
    in_user_space = found.found == "netdev"
    if in_user_space and found.setting == "auto" and (found.has_module or found.module_file):
        sentence = "br0 is in user space, which is slower, although this kernel has a module openvswitch"
        yield Finding("datapath", Level.WARNING, sentence, load)
    elif in_user_space and found.underlay and found.underlay_bridge != "netdev":
        sentence = (
            f"br0 is in user space and {found.underlay} with the node's address is no bridge of it, so tunnels have no "
            "route"
        )
        mend = (
            f"echo 'LINK={found.underlay}' > /etc/podlane/uplink.conf && systemctl enable --now podlane-uplink.service"
        )
        yield Finding("datapath", Level.PROBLEM, sentence, mend)
    else:
        yield _ok("datapath", f"br0 is in {'user space' if in_user_space else 'the kernel'}")


def forward_policy(found: Sequence[ForwardChain]) -> Iterator[Finding]:
    """Judge the firewalls' chains for forwarded packets."""
    dropping = [chain for chain in found if chain.policy == "drop"]
    for chain in dropping:
        where = f"{chain.program}'s chain {' '.join(filter(None, (chain.family, chain.table, chain.name)))}"
        if chain.accepts_pods:
            yield _ok("forward-policy", f"{where} drops forwarded packets, but accepts those of tun0")
            continue
        sentence = f"{where} drops forwarded packets, also those of pods to other networks"
        yield Finding("forward-policy", Level.PROBLEM, sentence, _accepting(chain))
    if not dropping:
        yield _ok("forward-policy", "no firewall has the policy drop for forwarded packets")


def _accepting(chain: ForwardChain) -> str:
    if chain.program == "iptables-legacy":
        return " && ".join(f"iptables-legacy -I {chain.name} {key} tun0 -j ACCEPT" for key in ("-i", "-o"))
    target = f"{chain.family} {chain.table} {chain.name}"
    return " && ".join(f"nft insert rule {target} {key} tun0 accept" for key in ("iifname", "oifname"))


def docker(found: Docker) -> Iterator[Finding]:
    """Judge Docker's version and options."""
    before = tuple(docker_problems(found))
    yield from before
    if not any(finding.level is Level.PROBLEM for finding in before):
        iptables = {True: "writes rules of iptables", False: "leaves iptables alone", None: "may write rules"}
        words = f"driver {found.storage_driver}, cgroup driver {found.cgroup_driver}; it {iptables[found.iptables]}"
        yield _ok("docker", f"Docker is {found.version}, with the storage {words}")


def docker_problems(found: Docker) -> Iterator[Finding]:
    """Yield what is wrong with Docker."""
    if found.options_problem:
        yield Finding("docker", Level.PROBLEM, found.options_problem, "dockerd --validate")
    if found.rootless:
        sentence = f"Docker {found.version} is rootless, which cannot run pods"
        yield Finding("docker", Level.PROBLEM, sentence, "apt-get install docker.io && systemctl enable --now docker")
    if found.root.startswith("/var/snap/"):
        sentence = f"Docker {found.version} is a snap, which cannot mount the volumes of pods"
        yield Finding("docker", Level.PROBLEM, sentence, "snap remove docker && apt-get install docker.io")
    if found.storage_driver in {"vfs", "devicemapper", "aufs", "overlay"}:
        sentence = f"Docker's storage driver is {found.storage_driver}, with which sizes of containers are not limited"
        mend = 'set "storage-driver": "overlay2" in /etc/docker/daemon.json, then systemctl restart docker'
        yield Finding("docker", Level.WARNING, sentence, mend)
    if not found.live_restore:
        sentence = "Docker's live-restore is off, so an upgrade or a restart of Docker ends all pods of this node"
        mend = 'set "live-restore": true in /etc/docker/daemon.json, then systemctl reload docker'
        yield Finding("docker", Level.WARNING, sentence, mend)


def images(found: Images) -> Iterator[Finding]:
    """Judge whether the sandbox image is there."""
    if found.found:
        yield _ok("images", f"Docker has the sandbox image {found.pause}")
        return
    mend = f"docker pull {found.pause}"
    if found.pause.startswith("podlane/"):
        make = 'from lab.images import load_pause; load_pause("/var/run/docker.sock")'
        mend = f"/opt/podlane/bin/python -c '{make}'"
    yield Finding("images", Level.PROBLEM, f"Docker has no sandbox image {found.pause}, so no pod starts", mend)


def cgroups(found: Cgroups) -> Iterator[Finding]:
    """Judge version and controllers of the cgroups."""
    missing = [name for name in CONTROLLERS if name not in found.controllers]
    if missing:
        sentence = f"cgroups (version {found.version}) have no controller {', '.join(missing)}, so limits do not hold"
        mend = (
            "add cgroup_enable=memory to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub && systemctl reboot"
        )
        yield Finding("cgroups", Level.PROBLEM, sentence, mend)
    else:
        yield _ok("cgroups", f"cgroups have version {found.version} and the controllers {', '.join(CONTROLLERS)}")


def sysctls(found: Sysctls) -> Iterator[Finding]:
    """Judge the sysctls that the pod network needs."""
    problems = []
    for name, wanted in (
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.conf.tun0.forwarding", "1"),
        ("net.ipv4.conf.tun0.arp_announce", "2"),
    ):
        value = found.values.get(name)
        if value is not None and value != wanted:
            sentence = f"{name} is {value}; packets of pods need {wanted}"
            problems.append(Finding("sysctls", Level.PROBLEM, sentence, f"sysctl -w {name}={wanted}"))
    used, limit = (found.values.get(f"net.netfilter.nf_conntrack_{name}", "") for name in ("count", "max"))
    if used.isdecimal() and limit.isdecimal() and int(used) > MAX_CONNTRACK * int(limit):
        sentence = f"{used} of {limit} connections are tracked; beyond that, new connections are dropped"
        mend = f"sysctl -w net.netfilter.nf_conntrack_max={2 * int(limit)}"
        problems.append(Finding("sysctls", Level.PROBLEM, sentence, mend))
    yield from problems
    if not problems:
        yield _ok("sysctls", "sysctls are as the pod network needs them")


def clock(found: Clock) -> Iterator[Finding]:
    """Judge the clock of this host."""
    ahead = found.ahead_seconds
    wrong = ahead is not None and abs(ahead) > MAX_AHEAD_SECONDS
    if wrong and ahead is not None:
        direction = "ahead of" if ahead > 0 else "behind"
        sentence = (
            f"the clock is {abs(ahead):.0f} s {direction} the master's, so certificates and tokens may be refused"
        )
        yield Finding(
            "clock", Level.PROBLEM, sentence, "timedatectl set-ntp true && systemctl restart systemd-timesyncd"
        )
    if found.synchronized is False:
        yield Finding("clock", Level.WARNING, "the clock is not synchronized", "timedatectl set-ntp true")
    elif not wrong:
        yield _ok("clock", "the clock is right" if ahead is None else "the clock is that of the master")


def certificates(found: Certificates) -> Iterator[Finding]:
    """Judge when certificates end."""
    problems = []
    for each in found.ends:
        left, day = each.end - found.now, f"{each.end:%Y-%m-%d}"
        if left <= timedelta(0):
            sentence = f"the certificate in {each.file} has ended on {day}"
            problems.append(Finding("certificates", Level.PROBLEM, sentence, each.mend))
        elif left < RENEWAL_DUE:
            level = Level.PROBLEM if left < EXPIRES_SOON else Level.WARNING
            sentence = f"the certificate in {each.file} ends on {day}"
            problems.append(Finding("certificates", level, sentence, each.mend))
    yield from problems
    if not problems and found.ends:
        first = min(found.ends, key=lambda each: each.end)
        yield _ok("certificates", f"the first certificate to end is in {first.file}, on {first.end:%Y-%m-%d}")


def disks(found: Sequence[Disk]) -> Iterator[Finding]:
    """Judge the free space of a node's disks."""
    for disk in found:
        free = f"{disk.path} has {_size(disk.free)} of {_size(disk.total)} free"
        if disk.total and disk.free < MIN_FREE * disk.total:
            sentence = f"{free}; below {MIN_FREE:.0%} the node agent evicts pods"
            yield Finding("disk", Level.PROBLEM, sentence, "docker image prune && journalctl --vacuum-size=200M")
        else:
            yield _ok("disk", free)


def store(found: Store) -> Iterator[Finding]:
    """Judge size and disk of the master's store."""
    free = f"{found.file} has {_size(found.size)}, and {_size(found.disk.free)} are free"
    if found.disk.free < max(found.size, MIN_FREE * found.disk.total):
        sentence = f"{free}; a migration needs as much as the file, and a full disk stops all changes"
        yield Finding("store", Level.PROBLEM, sentence, f"du -xh --max-depth=2 {found.disk.path} | sort -h | tail")
    else:
        yield _ok("store", free)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def ports(found: Ports) -> Iterator[Finding]:
    """Judge whether the ports of other hosts answer."""
    closed = [port for port in found.ports if port.problem]
    for port in closed[:MAX_SHOWN]:
        sentence = f"{port.who} does not answer at {port.address}:{port.port}/tcp: {port.problem}"
        mend = f"{_open_port('tcp', port.port)}  # on the host {port.address}"
        if port.problem == REFUSED:
            mend = f"systemctl restart podlane.target  # on the host {port.address}"
        yield Finding("ports", Level.PROBLEM, sentence, mend)
    if len(closed) > MAX_SHOWN:
        rest = _names([port.address for port in closed[MAX_SHOWN:]])
        yield Finding("ports", Level.PROBLEM, f"nor do {rest}", "kubectl get nodes -o wide")
    if not closed:
        yield _ok("ports", f"{_count(len(found.ports), 'port')} of daemons answered")


def _open_port(protocol: str, number: int) -> str:
    """Return the command that accepts packets to a port of a host.

    Debian's own firewall is the table `inet filter` of nftables. Hosts without that table use iptables, which Docker
    installs.
    """
    nft = f"nft insert rule inet filter input {protocol} dport {number} accept"
    return f"{nft} 2>/dev/null || iptables -I INPUT -p {protocol} --dport {number} -j ACCEPT"


def tunnels(found: Tunnels) -> Iterator[Finding]:
    """Judge the tunnels to other nodes."""
    lost = [peer for peer in found.peers if not peer.small]
    narrow = [peer for peer in found.peers if peer.small and not peer.full]
    yield from _lost(tuple(peer for peer in lost if peer.host_answers), answers=True)
    yield from _lost(tuple(peer for peer in lost if not peer.host_answers), answers=False)
    if narrow:
        sentence = (
            f"packets of {found.mtu} bytes, the MTU of pods, do not come back from {_names([p.name for p in narrow])}, "
            "but small ones do: the network of the hosts carries fewer than 50 bytes more than that"
        )
        mend = f"set mtu: {found.mtu - 50} in the master's master.yaml, then systemctl restart podlane-master"
        yield Finding("tunnels", Level.PROBLEM, sentence, mend)
    if not lost and not narrow:
        answered = _count(len(found.peers), "peer")
        of_all = f"{answered} of {found.total} answered" if len(found.peers) < found.total else f"{answered} answered"
        yield _ok("tunnels", f"{of_all} through the tunnels, also with packets of {found.mtu} bytes")


def _lost(peers: Sequence[Peer], *, answers: bool) -> Iterator[Finding]:
    if not peers:
        return
    names = _names([f"{peer.name} ({peer.address})" for peer in peers])
    if answers:
        sentence = f"the tunnels to {names} are lost, but these hosts answer: 4789/udp may be filtered"
        mend = f"{_open_port('udp', 4789)}  # on both hosts"
    else:
        sentence = f"neither the tunnels to {names} nor these hosts answer"
        mend = f"ip route get {peers[0].address} && kubectl get nodes"
    yield Finding("tunnels", Level.PROBLEM, sentence, mend)


def name_servers(found: NameServers) -> Iterator[Finding]:
    """Judge the cluster's name server and those for all other names."""
    if found.cluster_problem:
        sentence = f"the cluster's name server at {found.gateway} does not answer: {found.cluster_problem}"
        yield Finding("dns", Level.PROBLEM, sentence, "curl 127.0.0.1:10249/readyz/dns")
    silent = {server: problem for server, problem in found.upstream.items() if problem}
    if not found.upstream:
        sentence = f"{found.file} names no server, so pods resolve names of the cluster only"
        yield Finding("dns", Level.WARNING, sentence, f"editor {found.file}")
    elif len(silent) == len(found.upstream):
        words = "; ".join(f"{server}: {problem}" for server, problem in sorted(silent.items()))
        sentence = f"no name server of {found.file} answers ({words}), so pods resolve names of the cluster only"
        yield Finding("dns", Level.PROBLEM, sentence, f"editor {found.file}")
    for server, problem in sorted(silent.items()) if len(silent) < len(found.upstream) else ():
        sentence = f"the name server {server} of {found.file} does not answer: {problem}"
        yield Finding("dns", Level.WARNING, sentence, f"editor {found.file}")
    if not found.cluster_problem and found.upstream and not silent:
        yield _ok("dns", f"the cluster's name server at {found.gateway} and those of {found.file} answer")


def nodes(found: Nodes) -> Iterator[Finding]:
    """Judge the conditions of the nodes, as the master has them."""
    problems = []
    for node in found.nodes:
        command = f"kubectl describe node {node.name}"
        if not node.ready:
            sentence = f"the node {node.name} is not Ready: {node.reason}"
            problems.append(Finding("nodes", Level.PROBLEM, sentence, command))
        for kind, message in sorted(node.problems.items()):
            sentence = f"the node {node.name} has {kind}: {message}"
            problems.append(Finding("nodes", Level.PROBLEM, sentence, command))
    yield from problems
    if not found.nodes:
        yield Finding("nodes", Level.WARNING, "the cluster has no node", "podlane node token")
    elif not problems:
        yield _ok("nodes", f"{_count(len(found.nodes), 'node')} without a problem")
