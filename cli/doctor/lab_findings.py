"""Findings about a node of a lab. Its processes have no units, no journal and no files in /etc. Pure.

The checks name the commands of a host. Here each becomes one that works on the machine of the lab, from any directory.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from cli.doctor.host import AGENT, FILES, MASTER, SDN
from cli.doctor.observations import Finding
from lab.topology import Lab, LabNode

LOG_LINES = 20
FOREIGN = (
    "journalctl",
    "systemctl",
    "/etc/docker",
    "/etc/podlane",
    "dockerd ",
    "podlane bundle",
    "apt-get install docker",
)
"""What commands of hosts have that a lab does not have: there the log says more."""

IN_NAMESPACE = ("nft", "iptables-legacy", "sysctl", "ip", "curl")
"""Programs whose answers differ between network namespaces."""


def findings_in_lab(found: Iterable[Finding], lab: Lab, name: str, folder: Path) -> Iterator[Finding]:
    """Yield findings about a node, or the master, with commands of the lab.

    `folder` has the configuration files that were written for the examination.
    """
    for finding in found:
        if "live-restore" not in finding.found:  # A lab ends with its Docker, and no upgrade restarts that.
            yield _in_lab(finding, lab, name, folder)


def _in_lab(finding: Finding, lab: Lab, name: str, folder: Path) -> Finding:
    sentence, command = finding.found, finding.command
    for daemon, file in FILES.items():
        sentence = sentence.replace(f"{folder}/{file}", f"the settings of {daemon}")
    return replace(finding, found=sentence, command=_command(finding, lab, name, folder) if command else "")


def _command(finding: Finding, lab: Lab, name: str, folder: Path) -> str:
    command = finding.command.partition(" && journalctl --vacuum")[0]
    program, _, rest = command.partition(" ")
    place = _node(lab, name, command.partition("  # on the host ")[2])
    if "podlane node " in command:
        command = f"make -C {lab.state.parent} lab-down lab"
    elif "inet filter input" in command:
        # A lab has no table of this name: what drops the packets has to be found first.
        command = _in_namespace(lab, place, "nft list ruleset")
    elif str(folder) in command or any(word in command for word in FOREIGN):
        command = f"tail -n {LOG_LINES} {_log(finding, lab, place)}"
    elif program in IN_NAMESPACE:
        command = _in_namespace(lab, _node(lab, name), command)
    elif program == "kubectl":
        command = f"kubectl --kubeconfig={lab.state}/kubeconfig {rest}"
    return _with_sockets(command, _node(lab, name), lab.bin_dir)


def _node(lab: Lab, name: str, address: str = "") -> LabNode | None:
    """Return the node with an address, or of a name if no host of the lab has the address; None for the master."""
    hosts: dict[str, LabNode | None] = {str(node.address): node for node in lab.nodes}
    hosts[str(lab.site.master)] = None
    if address in hosts:
        return hosts[address]
    return next((node for node in lab.nodes if node.name == name), None)


def _with_sockets(command: str, node: LabNode | None, bin_dir: Path) -> str:
    """Return a command with the programs of the clone, and with the sockets of a node."""
    command = command.replace("/opt/podlane/bin/", f"{bin_dir}/")
    if node is None:
        return command
    program, _, rest = command.partition(" ")
    options = {"docker": f"--host=unix://{node.docker_socket}", "ovs-vsctl": f"--db=unix:{node.ovs}/db.sock"}
    if program in options:
        command = f"{program} {options[program]} {rest}"
    return command.replace("/var/run/docker.sock", str(node.docker_socket))


def _in_namespace(lab: Lab, node: LabNode | None, command: str) -> str:
    """Return a command that runs in the network namespace of a node, or of the master."""
    namespace = lab.site.master_namespace if node is None else node.namespace
    command = command.replace("&& kubectl", f"&& kubectl --kubeconfig={lab.state}/kubeconfig")
    shell = f"sh -c {shlex.quote(command)}" if "&&" in command else command
    return f"nsenter --net=/run/netns/{namespace} {shell}"


def _log(finding: Finding, lab: Lab, node: LabNode | None) -> Path:
    """Return the log of the process that a finding is about: the command names it, or else the sentence."""
    if node is None:
        return lab.state / "master" / "master.log"
    logs = lab.state / node.name / "log"
    for text in (finding.command, finding.found):
        if "ovsdb-server" in text:
            return logs / "ovsdb-server.log"
        if MASTER in text:
            return lab.state / "master" / "master.log"
        for words, log in ((SDN, "sdn"), (AGENT, "node-agent"), ("podlane.target", "node-agent")):
            if words in text:
                return logs / f"{log}.log"
    if finding.check == "openvswitch":
        switch = "ovsdb-server" if "ovsdb-server" in finding.found else "ovs-vswitchd"
        return logs / f"{switch}.log"
    by_check = {"datapath": "sdn", "tunnels": "sdn", "dns": "sdn", "docker": "dockerd", "disk": "dockerd"}
    return logs / f"{by_check.get(finding.check, 'dockerd' if 'ocker' in finding.found else 'node-agent')}.log"
