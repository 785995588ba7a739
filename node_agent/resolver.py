"""A pod's DNS policy → the text of its resolv.conf. Pure.

Source: facts/node.md 17. Beyond the limits of a resolver the first entries are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.objects import Pod
from api.pod_network import LONGEST_SEARCH, MOST_NAMESERVERS, MOST_SEARCHES, PodDNSConfig

CLUSTER_OPTIONS = ("ndots:5",)


@dataclass(frozen=True, slots=True)
class Resolver:
    """The three kinds of lines of a resolv.conf."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"nameserver {server}" for server in self.nameservers]
        lines += [f"search {' '.join(self.searches)}"] if self.searches else []
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "".join(f"{line}\n" for line in lines)


def parse(text: str) -> Resolver:
    """A resolv.conf as it lies on the node; the last `search` line holds."""
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for words in (line.split() for line in text.splitlines()):
        match words:
            case ["nameserver", server, *_]:
                servers.append(server)
            case ["search" | "domain", *domains]:
                searches = tuple(domains)
            case ["options", *found]:
                options += found
    return Resolver(tuple(servers), searches, tuple(options))


def resolver(pod: Pod, of_host: Resolver, cluster_dns: Sequence[str], cluster_domain: str) -> tuple[Resolver, str]:
    """What the pod's resolv.conf says, and which limit was exceeded, empty if none.

    Without a cluster DNS the policies that ask for it give what the host has.
    """
    wished = _added(_by_policy(pod, of_host, cluster_dns, cluster_domain), pod.spec.dns_config or PodDNSConfig())
    searches = wished.searches[:MOST_SEARCHES]
    while len(" ".join(searches)) > LONGEST_SEARCH:
        searches = searches[:-1]
    kept = Resolver(wished.nameservers[:MOST_NAMESERVERS], searches, wished.options)
    left_out = [
        f"{name} limits were exceeded, some {name.lower()}s have been omitted, the applied {name.lower()} line is: "
        f"{' '.join(used)}"
        for name, used, asked in (
            ("Nameserver", kept.nameservers, wished.nameservers),
            ("Search", kept.searches, wished.searches),
        )
        if used != asked
    ]
    return kept, "; ".join(left_out)


def without_cluster_dns(pod: Pod, cluster_dns: Sequence[str]) -> str:
    """Why the pod does not ask the cluster's DNS although its policy says so; empty if it does."""
    if cluster_dns or not asks_cluster(pod):
        return ""
    meta = pod.metadata
    words = f'cannot create Pod using "{pod.spec.dns_policy}" policy. Falling back to "Default" policy.'
    who = f'pod: "{meta.name}_{meta.namespace}({meta.uid})"'
    return f"{who}. Neither clusterDns nor the network of this node names a server, and {words}"


def asks_cluster(pod: Pod) -> bool:
    """Whether its policy is to ask the cluster's DNS."""
    policy = pod.spec.dns_policy
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod.spec.host_network)


def _by_policy(pod: Pod, of_host: Resolver, cluster_dns: Sequence[str], cluster_domain: str) -> Resolver:
    if pod.spec.dns_policy == "None":
        return Resolver()
    if not (asks_cluster(pod) and cluster_dns):
        return of_host
    own = (f"{pod.metadata.namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain)
    return Resolver(tuple(cluster_dns), (*own, *of_host.searches), CLUSTER_OPTIONS)


def _added(base: Resolver, config: PodDNSConfig) -> Resolver:
    named = {option.partition(":")[0]: option for option in base.options}
    for option in config.options:
        named[option.name] = option.name if option.value is None else f"{option.name}:{option.value}"
    return Resolver(
        tuple(dict.fromkeys((*base.nameservers, *config.nameservers))),
        tuple(dict.fromkeys((*base.searches, *config.searches))),
        tuple(named.values()),
    )
