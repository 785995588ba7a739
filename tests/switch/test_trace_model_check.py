"""Every attempt of the attacker, as a trace command: its sentence agrees with the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address

import pytest

from cli.trace.explain import GENERIC
from sdn.model.match import mac_text
from sdn.topology import mac_of
from tests.testbed.isolation.attempts import STRANGER, Attempt, attempts
from tests.testbed.isolation.world import PlannedPod, RunningPod
from tests.testbed.trace.dummy_switch import DummySwitch
from tests.testbed.trace.model_check import GeneratedCluster, add_ports, layout_of, load
from tests.testbed.trace.trace_command import full_name, sentence_for
from tests.testbed.trace.trace_world import TraceWorld

PLAN = GeneratedCluster(
    3,
    (("blue", 11), ("default", 0), ("green", 11), ("red", 10)),
    (
        PlannedPod("red-a", "red", "node-1"),
        PlannedPod("red-b", "red", "node-1"),
        PlannedPod("red-c", "red", "node-2"),
        PlannedPod("blue-a", "blue", "node-1"),
        PlannedPod("green-a", "green", "node-2"),
        PlannedPod("admin-a", "default", "node-3"),
    ),
)
FRAGMENTS = ("a first fragment", "a later fragment")
PAIRS = [(source.name, target.name) for source in PLAN.places for target in PLAN.places if source != target]


@pytest.fixture(scope="module")
def world() -> Iterator[TraceWorld]:
    with ExitStack() as stack:
        switches = {f"node-{number + 1}": stack.enter_context(DummySwitch()) for number in range(PLAN.nodes)}
        for switch in switches.values():
            add_ports(switch)
        yield load(PLAN, switches)


def in_words(world: TraceWorld, name: str, source: RunningPod, target: RunningPod) -> str:
    """Return the arguments of `trace` for an attempt. Raises AssertionError if there are none."""
    source_name, target_name = full_name(source), full_name(target)
    far = world.node_address(target.node)
    everybody, gateway = "ff:ff:ff:ff:ff:ff", mac_text(mac_of(world.gateway(source.node)))
    senders = {node: str(world.node_address(node)) for node in world.networks} | {"a stranger": str(STRANGER)}
    forms = {
        r"UDP": "{source} {target} --proto udp --port 9999",
        r"TCP": "{source} {target} --proto tcp --port 80",
        r"ICMP": "{source} {target}",
        r"to the gateway's MAC": "{source} {target} --proto udp --target-mac {gateway}",
        r"to everybody's MAC": "{source} {target} --proto udp --target-mac {everybody}",
        r"a (first|later) fragment": "{source} {target} --proto udp --fragment {0}",
        r"tagged (\d+)": "{source} {target} --vlan {0}",
        r"from the address (\S+)": "{source} {target} --source-address {0}",
        r"from the MAC and address of (\S+)": "{source} {target} --source-address {0} --source-mac {mac}",
        r"from a foreign MAC": "{source} {target} --source-mac {foreign}",
        r"to (\d\S+)": "{source} {0} --proto udp --port 9999",
        r"to the outside": "{source} {stranger} --proto udp --port 9999",
        r"IPv6 to it": "{source} {target} --proto ipv6",
        r"IPv6 to all": "{source} {target} --proto ipv6 --target-mac {everybody}",
        r"an ARP question to it": "{source} {target} --proto arp --target-mac {foreign}",
        r"an ARP question to all": "{source} {target} --proto arp",
        r"an ARP lie to it": "{source} {target} --proto arp-reply --source-address {address}",
        r"an ARP lie to all": "{source} {target} --proto arp-reply --source-address {address} --target-mac {everybody}",
        r"VXLAN by hand": "{source} {far} --proto udp --port 4789",
        r"through a tunnel from (.+) as VNID (\d+)": "{source} {target} --from-tunnel {sender} --vnid {1}",
    }
    for form, words in forms.items():
        actual = re.fullmatch(form, name)
        if actual is not None:
            given = actual.groups()
            mac = mac_text(mac_of(IPv4Address(given[0]))) if "{mac}" in words else ""
            return words.format(
                *given,
                source=source_name,
                target=target_name,
                far=far,
                everybody=everybody,
                gateway=gateway,
                mac=mac,
                foreign=mac_text(target.mac),
                address=target.address,
                stranger=STRANGER,
                sender=senders.get(given[0], "") if given else "",
            )
    raise AssertionError(f"{name!r} has no words")


def begins(world: TraceWorld, attempt: Attempt, source: RunningPod, target: RunningPod) -> str:
    """Return the beginning of the sentence according to the model. The gateway is no pod, and the switch answers
    unforged ARP requests.
    """
    if attempt.name == "to the outside":
        return f"delivered: {full_name(source)} reaches the outside, with the address of {source.node}"
    if attempt.arrives:
        return f"delivered: {full_name(source)} reaches {full_name(target)} on {target.node}"
    if attempt.name == f"to {world.gateway(target.node)}":
        return f"dropped because the firewall of {target.node} rejects what comes from the pod network to "
    if attempt.name.startswith("an ARP question"):
        return f"answered: the switch of {source.node} gives {full_name(source)} the MAC of {full_name(target)}, "
    return "dropped because "


@pytest.mark.parametrize(("source_name", "target_name"), PAIRS)
def test_trace_sentence_agrees_with_the_model(world: TraceWorld, source_name: str, target_name: str) -> None:
    source, target = world.pods[source_name], world.pods[target_name]
    wrong = []
    for attempt in attempts(layout_of(world), source, target):
        if attempt.name.startswith("LLDP"):
            continue  # the command has no other kinds of frames
        for name in FRAGMENTS if attempt.name == "in fragments" else (attempt.name,):
            words = in_words(world, name, source, target)
            sentence = sentence_for(world, words)
            if not sentence.startswith(begins(world, attempt, source, target)) or GENERIC in sentence:
                wrong.append((name, words, sentence))
    assert not wrong
