"""Connects the nodes of a lab to the networks that this machine reaches: forwarding and masquerading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lab.process import run, succeeds
from lab.topology import Lab, Site

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
FORWARD_CHAIN = ("ip", "filter", "FORWARD")
"""The chain of iptables-nft. Docker and firewalls give it the policy drop, which no table of ours can overrule."""


def connect(lab: Lab) -> None:
    """Forward what nodes send to other networks, with this machine as its source. Raises LabError."""
    site = lab.site
    if FORWARDING.read_text().strip() == "0":
        site.forwarding_mark.touch()
        FORWARDING.write_text("1\n")
    rule = f'ip saddr {site.underlay} oifname != "{site.bridge}" masquerade'
    chain = f"chain postrouting {{ type nat hook postrouting priority srcnat; {rule}\n }}\n"
    run("nft", f"table ip {_table(site)} {{\n {chain} }}\n")
    if _forward_chain_drops():
        for direction in ("iifname", "oifname"):
            run(
                "nft",
                "insert",
                "rule",
                *FORWARD_CHAIN,
                direction,
                site.bridge,
                "accept",
                "comment",
                f'"{_table(site)}"',
            )


def disconnect(site: Site) -> None:
    """Remove what `connect` made; nothing if it did not. Raises LabError."""
    if is_connected(site):
        run("nft", "delete", "table", "ip", _table(site))
    for handle in _accept_rules(site):
        run("nft", "delete", "rule", *FORWARD_CHAIN, "handle", str(handle))
    if site.forwarding_mark.exists():
        others = _other_labs(site)
        if others:
            # The last lab switches it off.
            others[0].forwarding_mark.touch()
        else:
            FORWARDING.write_text("0\n")
        site.forwarding_mark.unlink()


def is_connected(site: Site) -> bool:
    """Return True if `connect` has been called."""
    return succeeds("nft", "list", "table", "ip", _table(site))


def _other_labs(site: Site) -> list[Site]:
    """Return the other labs that forward."""
    names = [words[2] for line in run("nft", "list", "tables", "ip").splitlines() if len(words := line.split()) == 3]
    others = [replace(site, prefix=name.removesuffix("-lab")) for name in names if name.endswith("-lab")]
    return [other for other in others if other != site and other.run_dir.is_dir()]


def _table(site: Site) -> str:
    """Return the name of the lab's table, which is also the comment of its rules in other tables."""
    return f"{site.prefix}-lab"


def _forward_chain() -> list[dict[str, dict[str, object]]]:
    """Return chain and rules as nft prints them in JSON; nothing where iptables-nft has made no chain."""
    if not succeeds("nft", "list", "chain", *FORWARD_CHAIN):
        return []
    objects: list[dict[str, dict[str, object]]] = json.loads(run("nft", "--json", "list", "chain", *FORWARD_CHAIN))[
        "nftables"
    ]
    return objects


def _forward_chain_drops() -> bool:
    return any(entry["chain"].get("policy") == "drop" for entry in _forward_chain() if "chain" in entry)


def _accept_rules(site: Site) -> Iterator[object]:
    for entry in _forward_chain():
        if entry.get("rule", {}).get("comment") == _table(site):
            yield entry["rule"]["handle"]
