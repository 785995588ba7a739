"""What the checks of `podlane doctor` find in observations."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.doctor import checks
from cli.doctor.host import AGENT, MASTER, SDN, AgentSettings, MasterSettings, SdnSettings, read_settings
from cli.doctor.lab_findings import findings_in_lab
from cli.doctor.observations import (
    CertificateEnd,
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
    NodeSummary,
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
from lab.topology import Lab, Site
from master.config import MasterConfig
from node_agent.config import Settings as NodeAgentSettings
from sdn.config import Settings as SdnDaemonSettings

NOW = datetime(2026, 5, 1, tzinfo=UTC)
GIB = 1 << 30
GOOD_DOCKER = Docker("20.10.24", "overlay2", "systemd", live_restore=True, iptables=False)
GOOD_SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.tun0.forwarding": "1",
    "net.ipv4.conf.tun0.arp_announce": "2",
    "net.netfilter.nf_conntrack_count": "100",
    "net.netfilter.nf_conntrack_max": "1000",
}
IN_KERNEL = Datapath("auto", "system", has_module=True, module_file=True, underlay="eth0")
IN_USER_SPACE = Datapath("auto", "netdev", False, False, "br1", "netdev")
FORWARD = ForwardChain("nftables", "inet", "filter", "forward", "drop", accepts_pods=False)
LEGACY = ForwardChain("iptables-legacy", "", "", "FORWARD", "drop", accepts_pods=False)


def end(days: float) -> Certificates:
    return Certificates(NOW, (CertificateEnd("/etc/cert", NOW + timedelta(days=days), "renew"),))


def peers(*found: Peer) -> Tunnels:
    return Tunnels(1450, found, len(found))


GOOD: list[tuple[Callable[[Any], Iterator[Finding]], Any]] = [
    (checks.configuration, (Configuration(SDN, "/etc/podlane/sdn.yaml"),)),
    (checks.units, (Unit("podlane-sdn.service"),)),
    (checks.daemons, (Readiness(SDN),)),
    (checks.kernel, Kernel("6.1.0-18-amd64")),
    (checks.kernel, Kernel("5.10.0")),
    (checks.open_v_switch, OpenVSwitch("3.1.0")),
    (checks.datapath, IN_KERNEL),
    (checks.datapath, IN_USER_SPACE),
    (checks.forward_policy, ()),
    (checks.forward_policy, (ForwardChain("nftables", "ip", "filter", "FORWARD", "drop", accepts_pods=True),)),
    (checks.forward_policy, (ForwardChain("nftables", "ip", "filter", "FORWARD", "accept", accepts_pods=False),)),
    (checks.docker, GOOD_DOCKER),
    (checks.images, Images("podlane/pause:1", True)),
    (checks.cgroups, Cgroups(2, frozenset({"cpu", "memory", "pids", "io"}))),
    (checks.sysctls, Sysctls(GOOD_SYSCTLS)),
    (checks.sysctls, Sysctls({})),
    (checks.clock, Clock(-1.0, True)),
    (checks.clock, Clock(None, None)),
    (checks.certificates, end(15)),
    (checks.disks, (Disk("/var/lib/docker", 100 * GIB, 11 * GIB),)),
    (checks.store, Store("/store.db", GIB, Disk("/", 100 * GIB, 50 * GIB))),
    (checks.ports, Ports((Port("the master", "10.0.0.1", 8443),))),
    (checks.tunnels, peers(Peer("node-2", "10.0.0.2", True, True))),
    (checks.tunnels, peers()),
    (checks.name_servers, NameServers("10.128.0.1", "", "/etc/resolv.conf", {"10.0.0.1": ""})),
    (checks.nodes, Nodes((NodeSummary("node-1", True, ""),))),
]
"""Observations in which nothing is wrong."""

BAD: list[tuple[Callable[[Any], Iterator[Finding]], Any, Level, str, str]] = [
    (
        checks.configuration,
        (Configuration(SDN, "/etc/podlane/sdn.yaml", ("nodeIp: is missing",)),),
        Level.PROBLEM,
        "/etc/podlane/sdn.yaml: nodeIp: is missing",
        "podlane-sdn --config /etc/podlane/sdn.yaml --check",
    ),
    (
        checks.units,
        (Unit("docker.service", active="failed", sub="failed"),),
        Level.PROBLEM,
        "docker.service is failed (failed)",
        "systemctl restart docker.service",
    ),
    (checks.units, (Unit("x.service", load="not-found"),), Level.PROBLEM, "not-found", "systemctl status x.service"),
    (checks.units, (Unit("x.service", enabled="disabled"),), Level.WARNING, "does not start", "systemctl enable"),
    (checks.units, (Unit("x.service", restarts=3),), Level.WARNING, "after 3 restarts", "journalctl -u x.service"),
    (checks.daemons, (Readiness(SDN, "starting"),), Level.PROBLEM, "not ready: starting", "journalctl -t podlane-sdn"),
    (checks.kernel, Kernel("4.19.0"), Level.WARNING, "4.19.0; 5.10 is the oldest", "linux-image"),
    (checks.open_v_switch, OpenVSwitch("2.10.7"), Level.WARNING, "2.10.7; 2.15 is", "openvswitch-switch"),
    (
        checks.open_v_switch,
        OpenVSwitch("3.1.0", {"vxlan0": "could not add"}),
        Level.PROBLEM,
        "vxlan0: could not add",
        "ovs-vsctl",
    ),
    (checks.datapath, Datapath("auto", "", True, True), Level.PROBLEM, "no bridge br0", "journalctl"),
    (checks.datapath, Datapath("system", "", False, True), Level.PROBLEM, "no module", "modprobe openvswitch"),
    (checks.datapath, Datapath("system", "", False, False), Level.PROBLEM, "no module", "datapathType: netdev"),
    (
        checks.datapath,
        Datapath("auto", "netdev", False, True, "br1", "netdev"),
        Level.WARNING,
        "slower",
        "modprobe openvswitch",
    ),
    (checks.datapath, Datapath("netdev", "netdev", False, False, "eth0"), Level.PROBLEM, "eth0", "LINK=eth0"),
    (
        checks.forward_policy,
        (FORWARD,),
        Level.PROBLEM,
        "nftables's chain inet filter forward",
        "nft insert rule inet filter forward iifname tun0 accept",
    ),
    (checks.forward_policy, (LEGACY,), Level.PROBLEM, "iptables-legacy's", "iptables-legacy -I FORWARD -i tun0"),
    (
        checks.docker,
        Docker("20.10.24", "overlay2", "systemd", live_restore=False),
        Level.WARNING,
        "live-restore",
        "systemctl reload docker",
    ),
    (checks.docker, Docker("1", "vfs", "systemd", live_restore=True), Level.WARNING, "vfs", "overlay2"),
    (
        checks.docker,
        Docker("1", "overlay2", "systemd", live_restore=True, rootless=True),
        Level.PROBLEM,
        "rootless",
        "docker.io",
    ),
    (
        checks.docker,
        Docker("1", "overlay2", "systemd", live_restore=True, root="/var/snap/docker/x"),
        Level.PROBLEM,
        "snap",
        "snap remove",
    ),
    (
        checks.docker,
        Docker("1", "overlay2", "systemd", live_restore=True, options_problem="no JSON"),
        Level.PROBLEM,
        "no JSON",
        "dockerd --validate",
    ),
    (checks.images, Images("podlane/pause:1", False), Level.PROBLEM, "podlane/pause:1", "load_pause"),
    (checks.images, Images("registry.example/pause:2", False), Level.PROBLEM, "pause:2", "docker pull registry."),
    (checks.cgroups, Cgroups(1, frozenset({"cpu", "pids"})), Level.PROBLEM, "no controller memory", "update-grub"),
    (
        checks.sysctls,
        Sysctls({**GOOD_SYSCTLS, "net.ipv4.ip_forward": "0"}),
        Level.PROBLEM,
        "ip_forward is 0",
        "sysctl -w net.ipv4.ip_forward=1",
    ),
    (
        checks.sysctls,
        Sysctls({**GOOD_SYSCTLS, "net.netfilter.nf_conntrack_count": "901"}),
        Level.PROBLEM,
        "901 of 1000",
        "nf_conntrack_max=2000",
    ),
    (checks.clock, Clock(90.0, True), Level.PROBLEM, "90 s ahead of", "timedatectl"),
    (checks.clock, Clock(-90.0, True), Level.PROBLEM, "90 s behind", "timedatectl"),
    (checks.clock, Clock(0.0, False), Level.WARNING, "not synchronized", "timedatectl"),
    (checks.certificates, end(-1), Level.PROBLEM, "has ended on 2026-04-30", "renew"),
    (checks.certificates, end(2), Level.PROBLEM, "ends on 2026-05-03", "renew"),
    (checks.certificates, end(10), Level.WARNING, "ends on 2026-05-11", "renew"),
    (checks.disks, (Disk("/", 100 * GIB, 9 * GIB),), Level.PROBLEM, "9.0 GiB of 100.0 GiB", "docker image prune"),
    (checks.store, Store("/s", 20 * GIB, Disk("/", 100 * GIB, 15 * GIB)), Level.PROBLEM, "20.0 GiB", "du -xh"),
    (
        checks.ports,
        Ports((Port("x", "10.0.0.1", 8443, "no answer"),)),
        Level.PROBLEM,
        "10.0.0.1:8443/tcp",
        "dport 8443",
    ),
    (checks.ports, Ports((Port("x", "10.0.0.1", 8443, "refused"),)), Level.PROBLEM, "refused", "systemctl restart"),
    (checks.tunnels, peers(Peer("n2", "10.0.0.2", False, False)), Level.PROBLEM, "n2 (10.0.0.2)", "udp dport 4789"),
    (
        checks.tunnels,
        peers(Peer("n2", "10.0.0.2", False, False, False)),
        Level.PROBLEM,
        "neither",
        "ip route get 10.0.0.2",
    ),
    (checks.tunnels, peers(Peer("n2", "10.0.0.2", True, False)), Level.PROBLEM, "1450 bytes", "mtu: 1400"),
    (
        checks.name_servers,
        NameServers("10.128.0.1", "no answer", "/etc/resolv.conf", {"10.0.0.1": ""}),
        Level.PROBLEM,
        "10.128.0.1",
        "readyz/dns",
    ),
    (checks.name_servers, NameServers("", "", "/r", {}), Level.WARNING, "names no server", "editor /r"),
    (checks.name_servers, NameServers("", "", "/r", {"a": "x", "b": "y"}), Level.PROBLEM, "a: x; b: y", "editor /r"),
    (checks.name_servers, NameServers("", "", "/r", {"a": "", "b": "y"}), Level.WARNING, "b of /r", "editor /r"),
    (checks.nodes, Nodes(()), Level.WARNING, "no node", "podlane node token"),
    (checks.nodes, Nodes((NodeSummary("n1", False, "no Docker"),)), Level.PROBLEM, "n1 is not Ready: no Docker", "n1"),
    (
        checks.nodes,
        Nodes((NodeSummary("n1", True, "", {"podlane.io/TunnelsLost": "to n2"}),)),
        Level.PROBLEM,
        "n1 has podlane.io/TunnelsLost: to n2",
        "kubectl describe node n1",
    ),
]


@pytest.mark.parametrize(("judge", "observation"), GOOD)
def test_good_observation_has_no_problem(judge: Callable[[Any], Iterator[Finding]], observation: object) -> None:
    found = list(judge(observation))
    assert found
    assert {finding.level for finding in found} == {Level.OK}
    assert [finding.command for finding in found] == [""] * len(found)


@pytest.mark.parametrize(("judge", "observation", "level", "words", "command"), BAD)
def test_bad_observation_is_found_with_the_command_that_mends_it(
    judge: Callable[[Any], Iterator[Finding]], observation: object, level: Level, words: str, command: str
) -> None:
    [finding] = [finding for finding in judge(observation) if finding.level is not Level.OK]
    assert finding.level is level
    assert words in finding.found
    assert command in finding.command
    assert "\n" not in finding.found


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize(
    ("judge", "observation", "rule"),
    [
        (checks.ports, Ports((Port("x", "10.0.0.1", 8443, "no answer"),)), ("tcp", "8443")),
        (checks.tunnels, peers(Peer("n2", "10.0.0.2", False, False)), ("udp", "4789")),
    ],
)
def test_command_that_opens_a_port_works_on_hosts_with_and_without_the_table_of_debian(
    judge: Callable[[Any], Iterator[Finding]],
    observation: object,
    rule: tuple[str, str],
    has_table: bool,
    tmp_path: Path,
) -> None:
    called = tmp_path / "called"
    for program, status in (("nft", 0 if has_table else 1), ("iptables", 0)):
        script = tmp_path / program
        script.write_text(f'#!/bin/sh\necho "$0 $*" >> {called}\nexit {status}\n')
        script.chmod(0o755)
    (finding,) = judge(observation)
    subprocess.run(finding.command, shell=True, check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    protocol, port = rule
    expected = [f"nft insert rule inet filter input {protocol} dport {port} accept"]
    if not has_table:
        expected.append(f"iptables -I INPUT -p {protocol} --dport {port} -j ACCEPT")
    assert called.read_text() == "".join(f"{tmp_path}/{command}\n" for command in expected)


LAB = Lab(
    Site("podx", IPv4Network("10.245.9.0/24")), Path("/clone/.lab"), Path("/clone/.venv/bin"), 2, "ovs-multitenant"
)
FOLDER = Path("/tmp/podlane-doctor-x")


@pytest.mark.parametrize("place", ["node-1", "master"])
@pytest.mark.parametrize(("judge", "observation", "level", "words", "command"), BAD)
def test_commands_of_a_lab_name_nothing_that_a_lab_does_not_have(
    judge: Callable[[Any], Iterator[Finding]], observation: object, level: Level, words: str, command: str, place: str
) -> None:
    if judge is checks.units or (judge in {checks.images, checks.disks} and place == "master"):
        return  # They are not observed there.
    of_host = [finding for finding in judge(observation) if finding.level is not Level.OK]
    for finding in findings_in_lab(of_host, LAB, place, FOLDER):
        assert finding.level is level
        assert words in finding.found
        if judge in {checks.clock, checks.cgroups, checks.kernel}:
            assert finding.command  # Of the machine, which runs systemd.
        else:
            foreign = (
                r"systemctl|journalctl|/etc/(docker|podlane)|/opt/|/var/run/|podlane node|^(docker|kubectl|nft) \w"
            )
            assert re.search(foreign, finding.command) is None, finding.command


@pytest.mark.parametrize(
    ("check", "found", "command", "expected"),
    [
        ("daemons", "", "journalctl -t podlane-sdn -p warning -n 20", "tail -n 20 /clone/.lab/node-1/log/sdn.log"),
        (
            "ports",
            "",
            "systemctl restart podlane.target  # on the host 10.245.9.4",
            "tail -n 20 NODE2/log/node-agent.log",
        ),
        ("ports", "", "systemctl restart podlane.target  # on the host 10.245.9.2", "tail -n 20 MASTER"),
        ("nodes", "", "journalctl -u podlane-master -n 20", "tail -n 20 MASTER"),
        (
            "openvswitch",
            "ovs-vswitchd",
            "systemctl restart openvswitch-switch",
            "tail -n 20 NODE1/log/ovs-vswitchd.log",
        ),
        ("datapath", "ovsdb-server", "systemctl restart openvswitch-switch", "tail -n 20 NODE1/log/ovsdb-server.log"),
        ("images", "Docker", "systemctl restart docker || journalctl", "tail -n 20 NODE1/log/dockerd.log"),
        ("configuration", "", f"podlane-sdn --config {FOLDER}/sdn.yaml --check", "tail -n 20 NODE1/log/sdn.log"),
        (
            "dns",
            "",
            "curl 127.0.0.1:10249/readyz/dns",
            "nsenter --net=/run/netns/podx-node-1 curl 127.0.0.1:10249/readyz/dns",
        ),
        ("sysctls", "", "sysctl -w a=1", "nsenter --net=/run/netns/podx-node-1 sysctl -w a=1"),
        ("forward-policy", "", "nft x && nft y", "nsenter --net=/run/netns/podx-node-1 sh -c 'nft x && nft y'"),
        ("nodes", "", "kubectl describe node n", "kubectl --kubeconfig=/clone/.lab/kubeconfig describe node n"),
        (
            "openvswitch",
            "",
            "ovs-vsctl list Interface",
            "ovs-vsctl --db=unix:/run/podx-lab/node-1/ovs/db.sock list Interface",
        ),
        ("images", "", "docker pull x", "docker --host=unix:///run/podx-lab/node-1/docker.sock pull x"),
        ("certificates", "", "podlane node add NAME --out FILE", "make -C /clone lab-down lab"),
        (
            "disk",
            "",
            "docker image prune && journalctl --vacuum-size=200M",
            "docker --host=unix:///run/podx-lab/node-1/docker.sock image prune",
        ),
        ("clock", "", "timedatectl set-ntp true", "timedatectl set-ntp true"),
    ],
)
def test_commands_of_hosts_become_those_of_the_lab(check: str, found: str, command: str, expected: str) -> None:
    [finding] = findings_in_lab([Finding(check, Level.PROBLEM, found, command)], LAB, "node-1", FOLDER)
    for name, path in (("NODE1", "node-1"), ("NODE2", "node-2"), ("MASTER", "master/master.log")):
        expected = expected.replace(name, f"/clone/.lab/{path}")
    assert finding.command == expected


def test_findings_of_a_lab_name_no_temporary_file_and_no_live_restore() -> None:
    of_host = [
        *checks.configuration((Configuration(SDN, f"{FOLDER}/sdn.yaml"),)),
        *checks.docker(Docker("20.10.24", "overlay2", "systemd", live_restore=False)),
    ]
    found = list(findings_in_lab(of_host, LAB, "node-1", FOLDER))
    assert [(finding.level, finding.found) for finding in found[:1]] == [
        (Level.OK, "podlane-sdn accepts the settings of podlane-sdn")
    ]
    assert [finding.level for finding in found[1:]] == [Level.OK]


def test_names_of_many_peers_are_cut() -> None:
    many = peers(*(Peer(f"node-{number}", "10.0.0.2", False, False) for number in range(20)))
    [finding] = checks.tunnels(many)
    assert "and 15 more" in finding.found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(MasterSettings, MasterConfig), (SdnSettings, SdnDaemonSettings), (AgentSettings, NodeAgentSettings)],
)
def test_defaults_are_those_of_the_daemon(ours: type[msgspec.Struct], theirs: type[msgspec.Struct]) -> None:
    defaults = {field.encode_name: field for field in msgspec.structs.fields(theirs)}
    for field in msgspec.structs.fields(ours):
        daemon = defaults[field.encode_name]
        assert daemon.required or daemon.default == field.default, field.encode_name


def test_settings_of_a_wrong_type_count_as_absent() -> None:
    read = read_settings(SdnSettings, {"nodeName": ["x"], "nodeIp": "10.0.0.1", "unknown": 1})
    assert (read.node_name, read.node_ip) == ("", "10.0.0.1")
    assert read_settings(SdnSettings, None) == SdnSettings()


def test_every_daemon_has_a_check_of_its_own() -> None:
    from cli.doctor.examine import CHECKS, EVERYWHERE

    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
    assert {MASTER, SDN, AGENT} == {next(iter(check.daemons)) for check in CHECKS if check.daemons != EVERYWHERE}
