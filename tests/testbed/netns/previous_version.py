"""A node as the previous version of the sdn daemon leaves it: its flows, groups, table names and nftables tables.

The state is recorded from that version, once: `python -m tests.testbed.netns.previous_version PODLANE-SDN` starts the
program at PODLANE-SDN, for example of a worktree of commit 976f8b4, in the world of `previous_version_world`, and
writes the files in `STATE`. `restore` puts them onto a node of another such world.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

from api.core.services import ServicePort
from lab.process import run
from lab.topology import EXTERNAL_IP_NETWORK
from sdn.pipeline.tables import Table
from sdn.proxy.nftables import TEMPORARY_TABLE
from sdn.topology import VXLAN_PORT
from tests.testbed.netns.packet_world import PacketWorld, running_world
from tests.testbed.netns.services import TARGET_PORT, answering, create_service, register, wait_for_answer
from tests.testbed.wait import wait_until

STATE = Path(__file__).parent / "previous_version"
THIRD_OCTET = 19
NODE = "node-1"
NFTABLES = (("ip", "podlane"), ("ip", "podlane-services"), ("netdev", "podlane-guard"))

STREAM_PORTS = {81: 8081, 83: 8083}
DATAGRAM_PORT, DATAGRAM_TARGET = 82, 8082
WEB, STREAM, STICKY, INBOX, EMPTY, SHOP = (f"172.30.77.{number}" for number in range(1, 7))
"""Cluster IPs of the services."""

WEB_EXTERNAL_IP = str(IPv4Network(EXTERNAL_IP_NETWORK).network_address + 77)
PREVIOUS_SETS = (
    *("own", "outside", "node_ports", "outside_fronts", "nodes", "backends", "sticky_ids", "askers"),
    "outside_affinity",
)
PREVIOUS_CHAIN = re.compile(r"refuse|proxied|pods|names|(any|outside)-\d+(-\d+)?")
PREVIOUS_ONLY_TABLES = ("12", "13", "14", "15", "16", "29", "30")
"""Numbers of OpenFlow tables that only the previous version has."""


@contextlib.contextmanager
def previous_version_world(prefix: str) -> Iterator[PacketWorld]:
    """Run two nodes with pods of three projects that answer, and with services of every kind."""
    with running_world(prefix, THIRD_OCTET) as cluster:
        names = tuple(cluster.pods)
        register(cluster, *names)
        with answering(cluster, *names):
            _create_services(cluster)
            yield cluster


def _create_services(cluster: PacketWorld) -> None:
    web = (
        ServicePort(port=80, name="tcp", target_port=TARGET_PORT, node_port=30080),
        ServicePort(port=80, name="udp", target_port=TARGET_PORT, node_port=30081, protocol="UDP"),
    )
    stream = tuple(ServicePort(port=port, name=f"p{port}", target_port=target) for port, target in STREAM_PORTS.items())
    inbox = (ServicePort(port=DATAGRAM_PORT, target_port=DATAGRAM_TARGET, protocol="UDP"),)
    everyone = {"all": "yes"}
    external = (WEB_EXTERNAL_IP,)
    create_service(cluster, "web", "red", everyone, cluster_ip=WEB, type="NodePort", ports=web, external_ips=external)
    create_service(cluster, "stream", "red", {"app": "red-c"}, cluster_ip=STREAM, ports=stream)
    create_service(cluster, "sticky", "red", everyone, cluster_ip=STICKY, session_affinity="ClientIP")
    create_service(cluster, "inbox", "red", {"app": "red-a"}, cluster_ip=INBOX, ports=inbox)
    create_service(cluster, "empty", "red", {"app": "none"}, cluster_ip=EMPTY)
    create_service(cluster, "shop", "default", {"app": "admin-b"}, cluster_ip=SHOP)
    for source, address in (("red-a", WEB), ("red-a", STICKY), ("blue-a", SHOP)):
        wait_for_answer(cluster.pod_namespace(source), address, 80)
    for address in (WEB, STICKY, SHOP):
        wait_for_answer(cluster.nodes[NODE].namespace, address, 80)


def record(cluster: PacketWorld, program: str) -> None:
    """Run the program on a node, and record the state that it leaves. VNIDs are recorded by name."""
    ours = cluster.specification(f"{NODE} sdn")
    cluster.kill(f"{NODE} sdn")
    _clear(cluster)
    cluster.start(f"{NODE} sdn", replace(ours, command=(program, *ours.command[1:])))
    wait_until(lambda: any("table=20" in group for group in groups(cluster)), "the groups of services")
    wait_until(lambda: cluster.network_ready(NODE), "the network")
    for address in (WEB, STICKY, SHOP):
        wait_for_answer(cluster.nodes[NODE].namespace, address, 80)
        wait_for_answer(cluster.pod_namespace("admin-a"), address, 80)
    cluster.kill(f"{NODE} sdn")
    vnids = {cluster.vnid(project): project for project in ("red", "blue")}
    STATE.mkdir(exist_ok=True)
    flows = "".join(f"{_by_name(flow, vnids)}\n" for flow in cluster.flows(NODE))
    (STATE / "flows.txt").write_text(flows)
    (STATE / "groups.txt").write_text("\n".join(groups(cluster)) + "\n")
    (STATE / "tables.txt").write_text("".join(f"{number} {name}\n" for number, name in table_names(cluster).items()))
    for family, table in NFTABLES:
        text = cluster.in_node(NODE, "nft", "list", "table", family, table)
        (STATE / f"{table}.nft").write_text(re.sub(r" expires \w+", "", text))


def restore(cluster: PacketWorld) -> None:
    """Replace the state of a node by the recorded one. The node's daemon must not run."""
    vnids = {project: cluster.vnid(project) for project in ("red", "blue")}
    folder = cluster.nodes[NODE].root
    for name in ("flows", "groups"):
        (folder / f"{name}.txt").write_text(_by_number((STATE / f"{name}.txt").read_text(), vnids))
    _clear(cluster)
    switch = str(cluster.nodes[NODE].ovs / "br0.mgmt")
    _ofctl("add-groups", switch, str(folder / "groups.txt"))
    _ofctl("replace-flows", switch, str(folder / "flows.txt"))
    for line in (STATE / "tables.txt").read_text().splitlines():
        number, name = line.split()
        cluster.vsctl(
            NODE,
            "--",
            "--id=@t",
            "create",
            "Flow_Table",
            f"name={name}",
            "--",
            "set",
            "bridge",
            "br0",
            f"flow_tables:{number}=@t",
        )
    for _, table in NFTABLES:
        (folder / f"{table}.nft").write_text(_without_tunnel_port((STATE / f"{table}.nft").read_text()))
        cluster.in_node(NODE, "nft", "-f", str(folder / f"{table}.nft"))
    _forget_datapath_flows(cluster)


def find_replies_by_port(cluster: PacketWorld) -> None:
    """Replace the flows of a node that find replies by those of the version before: by the port alone, in one table.

    That version had all other flows as they are today. The node's daemon must not run.
    """
    lookup, learned, undnat = (
        int(table) for table in (Table.ENDPOINT_LOOKUP, Table.USED_ENDPOINTS, Table.SERVICE_UNDNAT)
    )
    flows = []
    for flow in cluster.flows(NODE):
        if f" table={lookup}," not in flow:
            by_port = flow.replace(f" table={undnat},", f" table={lookup},").replace("reg6=0x1,", "")
            flows.append(re.sub(rf"learn\(table={learned},[^)]*\),", "", by_port))
    path = cluster.nodes[NODE].root / "flows.txt"
    path.write_text("\n".join(flows) + "\n")
    _ofctl("replace-flows", str(cluster.nodes[NODE].ovs / "br0.mgmt"), str(path))
    _forget_datapath_flows(cluster)


def _without_tunnel_port(table: str) -> str:
    """Return a recorded nftables table that never masquerades UDP with the port of tunnels.

    The previous version did, once in 65,000 calls, and lost the reply. An upgrade cannot mend what happened before it.
    """
    rule = "masquerade fully-random"
    safe = f"meta l4proto udp masquerade to :{VXLAN_PORT + 1}-65535 fully-random"
    lines = ([line.replace(rule, safe), line] if rule in line else [line] for line in table.splitlines())
    return "\n".join(itertools.chain.from_iterable(lines)) + "\n"


def _forget_datapath_flows(cluster: PacketWorld) -> None:
    """Delete the datapath flows, which the switch derived from the present version's tables and from empty ones.

    A packet that returns from connection tracking to a present table gets the recirculation id that such packets had
    before. Where the table was empty in the meantime, the datapath flow of that id drops, until the switch revalidates
    it, up to half a second after the upgrade. On a real node the present tables have no past.
    """
    run("ovs-appctl", "-t", str(cluster.nodes[NODE].ovs / "ovs-vswitchd.ctl"), "revalidator/purge")


def _clear(cluster: PacketWorld) -> None:
    """Delete flows, groups, names of tables and nftables tables."""
    switch = str(cluster.nodes[NODE].ovs / "br0.mgmt")
    _ofctl("del-flows", switch)
    _ofctl("del-groups", switch)
    cluster.vsctl(NODE, "clear", "bridge", "br0", "flow_tables")
    cluster.in_node(NODE, "nft", "flush", "ruleset")


def remains(cluster: PacketWorld) -> list[str]:
    """Return the remains of the previous version: flows, groups, names of tables, nftables sets and chains."""
    tables = "|".join(PREVIOUS_ONLY_TABLES)
    left = [flow for flow in cluster.flows(NODE) if re.search(rf"table=({tables}),|goto_table:({tables})\b", flow)]
    left += [group for group in groups(cluster) if re.search(r"table=20\b", group)]
    left += [f"{number} {name}" for number, name in table_names(cluster).items() if str(number) in PREVIOUS_ONLY_TABLES]
    listed = cluster.in_node(NODE, "nft", "list", "table", "ip", "podlane-services")
    left += [name for name in re.findall(r"^\t(?:set|map) (\S+) {", listed, re.MULTILINE) if name in PREVIOUS_SETS]
    left += [name for name in re.findall(r"^\tchain (\S+) {", listed, re.MULTILINE) if PREVIOUS_CHAIN.fullmatch(name)]
    return left + re.findall(TEMPORARY_TABLE, cluster.in_node(NODE, "nft", "list", "tables"))


def table_names(cluster: PacketWorld) -> dict[int, str]:
    """Names of br0's tables by number."""
    numbers = cluster.vsctl(NODE, "get", "bridge", "br0", "flow_tables")
    pairs = re.findall(r"(\d+)=([0-9a-f-]{36})", numbers)
    return {
        int(number): cluster.vsctl(NODE, "get", "Flow_Table", uuid, "name").strip().strip('"') for number, uuid in pairs
    }


def groups(cluster: PacketWorld) -> list[str]:
    """Return the groups of br0, sorted."""
    dump = _ofctl("dump-groups", str(cluster.nodes[NODE].ovs / "br0.mgmt"))
    return sorted(line.strip() for line in dump.splitlines() if "group_id=" in line)


def _ofctl(command: str, switch: str, *words: str) -> str:
    return run("ovs-ofctl", "-O", "OpenFlow14", command, switch, *words)


def _by_name(text: str, vnids: dict[int, str]) -> str:
    return re.sub(r"(reg0=|set_field:)0x([0-9a-f]+)(?!\w)(?=,|->reg0| )", lambda match: _named(match, vnids), text)


def _named(match: re.Match[str], vnids: dict[int, str]) -> str:
    project = vnids.get(int(match[2], 16))
    return f"{match[1]}VNID-{project}" if project is not None else match[0]


def _by_number(text: str, vnids: dict[str, int]) -> str:
    return re.sub(r"VNID-(\w+)", lambda match: hex(vnids[match[1]]), text)


if __name__ == "__main__":
    with previous_version_world("podrec") as world:
        record(world, sys.argv[1])
