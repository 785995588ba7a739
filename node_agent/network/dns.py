"""Hostname, /etc/hosts and /etc/resolv.conf of a pod. Pure.

Source: facts/node.md 4 and 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.core.pod import Pod, PodDNSConfig
from api.validation.pod import LONGEST_SEARCH, MOST_NAMESERVERS, MOST_SEARCHES
from reconcile.errors import Refused

LONGEST_NAME = 64
"""What the kernel takes as a host name."""

LOCAL = (
    ("127.0.0.1", "localhost"),
    ("::1", "localhost ip6-localhost ip6-loopback"),
    ("fe00::0", "ip6-localnet"),
    ("fe00::0", "ip6-mcastprefix"),
    ("fe00::1", "ip6-allnodes"),
    ("fe00::2", "ip6-allrouters"),
)


def hostname(pod: Pod) -> str:
    """The pod's short name: at most 63 characters of its name."""
    return (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")


def pod_domain(pod: Pod, cluster_domain: str) -> str:
    """The domain of a pod with a subdomain; empty without one, and with hostNetwork, where it is the host's own."""
    spec = pod.spec
    is_own = bool(spec.subdomain) and not spec.host_network
    return f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}" if is_own else ""


def sandbox_hostname(pod: Pod, cluster_domain: str) -> str:
    """What `hostname` prints in the pod; empty, which is the host's own, with hostNetwork.

    Raises Refused when the kernel does not take the name.
    """
    if pod.spec.host_network:
        return ""
    long = pod_domain(pod, cluster_domain)
    if not (pod.spec.set_hostname_as_fqdn and long):
        return hostname(pod)
    name = f"{hostname(pod)}.{long}"
    if len(name) > LONGEST_NAME:
        why = "Failed to construct FQDN from pod hostname and cluster domain"
        raise Refused(f"{why}: {name} is longer than {LONGEST_NAME}")
    return name


def hosts_file_content(pod: Pod, address: str, cluster_domain: str, of_host: str) -> str:
    """The content of a pod's /etc/hosts; `of_host` is that of the node, which a pod with hostNetwork has as well."""
    if pod.spec.host_network:
        text = f"# Kubernetes-managed hosts file (host network).\n{of_host}"
        text += "" if text.endswith("\n") else "\n"
    else:
        long = pod_domain(pod, cluster_domain)
        names = f"{hostname(pod)}.{long}\t{hostname(pod)}" if long else hostname(pod)
        text = "# Kubernetes-managed hosts file.\n"
        text += "".join(f"{ip}\t{name}\n" for ip, name in (*LOCAL, (address, names)) if ip)
    if pod.spec.host_aliases:
        rows = ("\t".join((alias.ip, *alias.hostnames)) for alias in pod.spec.host_aliases)
        text += "\n# Entries added by HostAliases.\n" + "".join(f"{row}\n" for row in rows)
    return text


CLUSTER_OPTIONS = ("ndots:5",)


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """The three kinds of lines of a resolv.conf."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"nameserver {server}" for server in self.nameservers]
        lines += [f"search {' '.join(self.searches)}"] if self.searches else []
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "".join(f"{line}\n" for line in lines)


def parse_resolv_conf(text: str) -> ResolvConf:
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
    return ResolvConf(tuple(servers), searches, tuple(options))


def pod_resolv_conf(
    pod: Pod, of_host: ResolvConf, cluster_dns: Sequence[str], cluster_domain: str
) -> tuple[ResolvConf, str]:
    """What the pod's resolv.conf says, and which limit was exceeded, empty if none.

    Without a cluster DNS the policies that ask for it give what the host has.
    """
    wished = _added(_by_policy(pod, of_host, cluster_dns, cluster_domain), pod.spec.dns_config or PodDNSConfig())
    searches = wished.searches[:MOST_SEARCHES]
    while len(" ".join(searches)) > LONGEST_SEARCH:
        searches = searches[:-1]
    kept = ResolvConf(wished.nameservers[:MOST_NAMESERVERS], searches, wished.options)
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


def missing_cluster_dns(pod: Pod, cluster_dns: Sequence[str]) -> str:
    """Why the pod does not ask the cluster's DNS although its policy says so; empty if it does."""
    if cluster_dns or not uses_cluster_dns(pod):
        return ""
    meta = pod.metadata
    words = f'cannot create Pod using "{pod.spec.dns_policy}" policy. Falling back to "Default" policy.'
    who = f'pod: "{meta.name}_{meta.namespace}({meta.uid})"'
    return f"{who}. Neither clusterDns nor the network of this node names a server, and {words}"


def uses_cluster_dns(pod: Pod) -> bool:
    """Whether its policy is to ask the cluster's DNS."""
    policy = pod.spec.dns_policy
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod.spec.host_network)


def _by_policy(pod: Pod, of_host: ResolvConf, cluster_dns: Sequence[str], cluster_domain: str) -> ResolvConf:
    if pod.spec.dns_policy == "None":
        return ResolvConf()
    if not (uses_cluster_dns(pod) and cluster_dns):
        return of_host
    own = (f"{pod.metadata.namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain)
    return ResolvConf(tuple(cluster_dns), (*own, *of_host.searches), CLUSTER_OPTIONS)


def _added(base: ResolvConf, config: PodDNSConfig) -> ResolvConf:
    named = {option.partition(":")[0]: option for option in base.options}
    for option in config.options:
        named[option.name] = option.name if option.value is None else f"{option.name}:{option.value}"
    return ResolvConf(
        tuple(dict.fromkeys((*base.nameservers, *config.nameservers))),
        tuple(dict.fromkeys((*base.searches, *config.searches))),
        tuple(named.values()),
    )
