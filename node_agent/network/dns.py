"""Hostname, /etc/hosts and /etc/resolv.conf of a pod. Pure.

https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/ describes names and policies; the texts of the
files are those of kubelet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from api.core.pod import Pod, PodDNSConfig
from api.validation.pod import MAX_HOSTNAME_LENGTH, MAX_NAMESERVERS, MAX_SEARCH_DOMAINS, MAX_SEARCH_LENGTH
from reconcile.errors import Refused

LOCAL_HOSTS = (
    ("127.0.0.1", "localhost"),
    ("::1", "localhost ip6-localhost ip6-loopback"),
    ("fe00::0", "ip6-localnet"),
    ("fe00::0", "ip6-mcastprefix"),
    ("fe00::1", "ip6-allnodes"),
    ("fe00::2", "ip6-allrouters"),
)

CLUSTER_OPTIONS = ("ndots:5",)


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """The lines of a resolv.conf by their kind."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"nameserver {server}" for server in self.nameservers]
        if self.searches:
            lines.append(f"search {' '.join(self.searches)}")
        if self.options:
            lines.append(f"options {' '.join(self.options)}")
        return "".join(f"{line}\n" for line in lines)


def hostname(pod: Pod) -> str:
    """Return the pod's host name: `spec.hostnameOverride`, `spec.hostname`, or at most 63 characters of its name."""
    if pod.spec.hostname_override:
        return pod.spec.hostname_override
    return (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")


def pod_domain(pod: Pod, cluster_domain: str) -> str:
    """Return the domain of a pod with a subdomain.

    Returns an empty string without one, with hostNetwork, and with a hostnameOverride, which is the whole name.
    """
    spec = pod.spec
    if not spec.subdomain or spec.host_network or spec.hostname_override:
        return ""
    return f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}"


def sandbox_hostname(pod: Pod, cluster_domain: str) -> str:
    """Return the host name of the pod's sandbox. Returns an empty string with hostNetwork: the name is the host's.

    Raises Refused if the name is too long for the kernel.
    """
    if pod.spec.host_network:
        return ""
    domain = pod_domain(pod, cluster_domain)
    if not (pod.spec.set_hostname_as_fqdn and domain):
        return hostname(pod)
    name = f"{hostname(pod)}.{domain}"
    if len(name) > MAX_HOSTNAME_LENGTH:
        message = "Failed to construct FQDN from pod hostname and cluster domain"
        raise Refused(f"{message}: {name} is longer than {MAX_HOSTNAME_LENGTH}")
    return name


def hosts_file_content(pod: Pod, address: str, cluster_domain: str, node_hosts: str) -> str:
    """Return the content of a pod's /etc/hosts. `node_hosts` is the node's, which is used with hostNetwork."""
    if pod.spec.host_network:
        text = f"# Kubernetes-managed hosts file (host network).\n{node_hosts}"
        text += "" if text.endswith("\n") else "\n"
    else:
        domain = pod_domain(pod, cluster_domain)
        names = f"{hostname(pod)}.{domain}\t{hostname(pod)}" if domain else hostname(pod)
        text = "# Kubernetes-managed hosts file.\n"
        text += "".join(f"{ip}\t{name}\n" for ip, name in (*LOCAL_HOSTS, (address, names)) if ip)
    if pod.spec.host_aliases:
        lines = ("\t".join((alias.ip, *alias.hostnames)) for alias in pod.spec.host_aliases)
        text += "\n# Entries added by HostAliases.\n" + "".join(f"{line}\n" for line in lines)
    return text


def parse_resolv_conf(text: str) -> ResolvConf:
    """Parse a resolv.conf. Only its last `search` or `domain` line counts (resolv.conf(5))."""
    nameservers: list[str] = []
    searches: tuple[str, ...] = ()
    options: list[str] = []
    for fields in (line.split() for line in text.splitlines()):
        match fields:
            case ["nameserver", server, *_]:
                nameservers.append(server)
            case ["search" | "domain", *domains]:
                searches = tuple(domains)
            case ["options", *line_options]:
                options += line_options
    return ResolvConf(tuple(nameservers), searches, tuple(options))


def pod_resolv_conf(
    pod: Pod, node_conf: ResolvConf, cluster_dns: Sequence[str], cluster_domain: str
) -> tuple[ResolvConf, str]:
    """Return the pod's resolv.conf, and a message about entries beyond the limits, which are omitted.

    Without a cluster DNS, the policies that need it give the node's resolv.conf.
    """
    dns_config = pod.spec.dns_config or PodDNSConfig()
    full = _with_dns_config(_policy_resolv_conf(pod, node_conf, cluster_dns, cluster_domain), dns_config)
    searches = full.searches[:MAX_SEARCH_DOMAINS]
    while len(" ".join(searches)) > MAX_SEARCH_LENGTH:
        searches = searches[:-1]
    applied = ResolvConf(full.nameservers[:MAX_NAMESERVERS], searches, full.options)
    messages = [
        f"{name} limits were exceeded, some {name.lower()}s have been omitted, the applied {name.lower()} line is: "
        f"{' '.join(applied_values)}"
        for name, applied_values, values in (
            ("Nameserver", applied.nameservers, full.nameservers),
            ("Search", applied.searches, full.searches),
        )
        if applied_values != values
    ]
    return applied, "; ".join(messages)


def missing_cluster_dns(pod: Pod, cluster_dns: Sequence[str]) -> str:
    """Return a message if the pod's policy needs the cluster DNS and the node has none, otherwise an empty string."""
    if cluster_dns or not uses_cluster_dns(pod):
        return ""
    meta = pod.metadata
    fallback = f'cannot create Pod using "{pod.spec.dns_policy}" policy. Falling back to "Default" policy.'
    name = f'pod: "{meta.name}_{meta.namespace}({meta.uid})"'
    return f"{name}. Neither clusterDns nor the network of this node names a server, and {fallback}"


def uses_cluster_dns(pod: Pod) -> bool:
    """Return whether the pod's DNS policy uses the cluster DNS."""
    policy = pod.spec.dns_policy
    return policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod.spec.host_network)


def _policy_resolv_conf(pod: Pod, node_conf: ResolvConf, cluster_dns: Sequence[str], cluster_domain: str) -> ResolvConf:
    if pod.spec.dns_policy == "None":
        return ResolvConf()
    if not (uses_cluster_dns(pod) and cluster_dns):
        return node_conf
    searches = (f"{pod.metadata.namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain)
    return ResolvConf(tuple(cluster_dns), (*searches, *node_conf.searches), CLUSTER_OPTIONS)


def _with_dns_config(base: ResolvConf, config: PodDNSConfig) -> ResolvConf:
    """Return a resolv.conf with the entries of `spec.dnsConfig` added. Its options replace options of the same name."""
    options = {option.partition(":")[0]: option for option in base.options}
    for option in config.options:
        options[option.name] = option.name if option.value is None else f"{option.name}:{option.value}"
    return ResolvConf(
        tuple(dict.fromkeys((*base.nameservers, *config.nameservers))),
        tuple(dict.fromkeys((*base.searches, *config.searches))),
        tuple(options.values()),
    )
