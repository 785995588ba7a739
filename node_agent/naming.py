"""How a pod calls itself: host name, domain, and its /etc/hosts. Pure.

Source: facts/node.md 4 and 5.2.
"""

from __future__ import annotations

from api.objects import Pod
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


def domain(pod: Pod, cluster_domain: str) -> str:
    """The domain of a pod with a subdomain; empty without one, and with hostNetwork, where it is the host's own."""
    spec = pod.spec
    is_own = bool(spec.subdomain) and not spec.host_network
    return f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}" if is_own else ""


def kernel_name(pod: Pod, cluster_domain: str) -> str:
    """What `hostname` prints in the pod; empty, which is the host's own, with hostNetwork.

    Raises Refused when the kernel does not take the name.
    """
    if pod.spec.host_network:
        return ""
    long = domain(pod, cluster_domain)
    if not (pod.spec.set_hostname_as_fqdn and long):
        return hostname(pod)
    name = f"{hostname(pod)}.{long}"
    if len(name) > LONGEST_NAME:
        why = "Failed to construct FQDN from pod hostname and cluster domain"
        raise Refused(f"{why}: {name} is longer than {LONGEST_NAME}")
    return name


def hosts_text(pod: Pod, address: str, cluster_domain: str, of_host: str) -> str:
    """The content of a pod's /etc/hosts; `of_host` is that of the node, which a pod with hostNetwork has as well."""
    if pod.spec.host_network:
        text = f"# Kubernetes-managed hosts file (host network).\n{of_host}"
        text += "" if text.endswith("\n") else "\n"
    else:
        long = domain(pod, cluster_domain)
        names = f"{hostname(pod)}.{long}\t{hostname(pod)}" if long else hostname(pod)
        text = "# Kubernetes-managed hosts file.\n"
        text += "".join(f"{ip}\t{name}\n" for ip, name in (*LOCAL, (address, names)) if ip)
    if pod.spec.host_aliases:
        rows = ("\t".join((alias.ip, *alias.hostnames)) for alias in pod.spec.host_aliases)
        text += "\n# Entries added by HostAliases.\n" + "".join(f"{row}\n" for row in rows)
    return text
