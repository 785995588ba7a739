"""The configuration of podlane-master: settings, their validation, and the values derived from them. Pure."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from api.network import types
from master.allocators import SubnetPool, SubnetPools
from reconcile.config_schema import ListenAddress, LogLevel, address_problems, problem

DOMAIN_PATTERN = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
HostBits = Annotated[int, msgspec.Meta(ge=2, le=30, description="host bits of each node's subnet; 9 is a /23")]


class ClusterNetworkEntryConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One further cluster network."""

    cidr: str
    host_subnet_length: HostBits


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Configuration of podlane-master, /etc/podlane/master.yaml."""

    listen_address: Annotated[
        str, msgspec.Meta(description="IP address to listen on; 0.0.0.0 is every address of the machine")
    ] = "0.0.0.0"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535, description="TCP port to listen on; 0 chooses a free one")] = 8443
    advertise_address: Annotated[
        str, msgspec.Meta(description="IPv4 address at which nodes and administrators reach the master")
    ] = "10.245.2.2"
    master_public_url: Annotated[
        str,
        msgspec.Meta(
            description="URL at which browsers and clients reach the master; empty: https:// with advertiseAddress and "
            "port"
        ),
    ] = msgspec.field(default="", name="masterPublicURL")
    state_dir: Annotated[str, msgspec.Meta(description="directory of the database and the certificates")] = (
        "/var/lib/podlane/master"
    )
    admin_kubeconfig: Annotated[
        str, msgspec.Meta(description="path of the administrator's kubeconfig; empty: admin.kubeconfig in stateDir")
    ] = ""
    kubeconfig: Annotated[
        str,
        msgspec.Meta(
            description="kubeconfig of another cluster: run only the network controllers on its API server; empty: "
            "run the API server"
        ),
    ] = ""
    health_address: Annotated[
        ListenAddress, msgspec.Meta(description="with kubeconfig: ADDRESS:PORT of /healthz, /readyz and /metrics")
    ] = "127.0.0.1:10247"
    plugin: Annotated[
        Literal["ovs-multitenant", "ovs-subnet"],
        msgspec.Meta(description="ovs-multitenant isolates projects, ovs-subnet is one flat network"),
    ] = "ovs-multitenant"
    cluster_network: Annotated[str, msgspec.Meta(description="network of all pods, as a CIDR")] = "10.128.0.0/14"
    host_subnet_length: HostBits = 9
    more_cluster_networks: Annotated[
        tuple[ClusterNetworkEntryConfig, ...],
        msgspec.Meta(
            description="further networks of pods, used when clusterNetwork is full: a list of {cidr, hostSubnetLength}"
        ),
    ] = ()
    service_network: Annotated[str, msgspec.Meta(description="network of cluster IPs of services, as a CIDR")] = (
        "172.30.0.0/16"
    )
    services_node_port_range: Annotated[
        str, msgspec.Meta(description="range of node ports of services, as FIRST-LAST")
    ] = "30000-32767"
    external_ip_network_cidrs: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="networks in which externalIPs of services are accepted, a list of CIDRs; a CIDR after '!' is "
            "excluded; empty: externalIPs are rejected"
        ),
    ] = msgspec.field(default=(), name="externalIPNetworkCIDRs")
    ingress_ip_network_cidr: Annotated[
        str,
        msgspec.Meta(
            description="network of ingress IPs of services of the type LoadBalancer, as a CIDR; empty: the master "
            "assigns none, and a cloud controller may"
        ),
    ] = msgspec.field(default="172.29.0.0/16", name="ingressIPNetworkCIDR")
    mtu: Annotated[
        Annotated[int, msgspec.Meta(ge=576, le=65536)] | None,
        msgspec.Meta(description="MTU of pods in bytes; unset: that of the underlay minus 50"),
    ] = None
    cluster_domain: Annotated[
        str,
        msgspec.Meta(
            pattern=DOMAIN_PATTERN,
            description="DNS domain of the cluster, the same on all nodes",
            extra={"accepted": "a DNS domain in lower case such as cluster.local"},
        ),
    ] = "cluster.local"
    dns_port: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=65535, description="port of the DNS server for services at advertiseAddress; 0: no server"
        ),
    ] = 53
    node_monitor_grace_seconds: Annotated[
        int, msgspec.Meta(ge=1, description="seconds without a heartbeat after which a node is not Ready")
    ] = 50
    verify_node_certificates: Annotated[
        bool,
        msgspec.Meta(
            description="whether servers of nodes need a certificate of the cluster's authority that names the node; "
            "without it, who takes over port 10250 of a node reads what users send to kubectl exec"
        ),
    ] = True
    max_connections_per_user: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="open connections of one user, or of the service accounts of one project; administrators "
            "(system:masters) have no limit",
        ),
    ] = 1_000
    security_context_constraints: Annotated[
        bool,
        msgspec.Meta(
            description="whether security context constraints decide what pods may be; without them, everybody who may "
            "create a pod in a project can own the nodes"
        ),
    ] = True
    local_storage_class: Annotated[
        bool,
        msgspec.Meta(
            description="whether the master creates the StorageClass local, whose volumes are directories of nodes; it "
            "becomes the default class if there is none"
        ),
    ] = True
    identity_providers: Annotated[
        tuple[dict[str, Any], ...],
        msgspec.Meta(
            description="identity providers of users, in the order in which they are tried: a list of {name, "
            "challenge, login, mappingMethod, provider}; empty: nobody logs in with a password"
        ),
    ] = ()
    service_account_grant_method: Annotated[
        Literal["prompt", "deny"],
        msgspec.Meta(
            description="what happens when a service account asks for an OAuth token of a user: prompt asks the user, "
            "deny refuses unless the user has granted it before"
        ),
    ] = "prompt"
    self_provisioning: Annotated[
        bool,
        msgspec.Meta(
            description="whether users who have logged in by OAuth may request projects: the master keeps the group "
            "system:authenticated:oauth in the ClusterRoleBinding self-provisioners, or out of it"
        ),
    ] = False
    project_request_template: Annotated[
        str,
        msgspec.Meta(
            description="file with the Template of requested projects; empty: the project, the role admin for its "
            "requester, and a LimitRange"
        ),
    ] = ""
    project_request_message: Annotated[
        str, msgspec.Meta(description="answer to users who may not request projects; empty: the one of OpenShift")
    ] = ""
    max_projects_per_user: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        msgspec.Meta(description="projects that a user may have requested; unset: any number"),
    ] = None
    audit_log_path: Annotated[
        str,
        msgspec.Meta(description="file of audit events; empty: audit/audit.log in stateDir; none: no audit log"),
    ] = ""
    audit_policy_file: Annotated[
        str,
        msgspec.Meta(
            description="Policy of audit.k8s.io/v1, as for kube-apiserver; empty: the metadata of all requests except "
            "health checks and leases"
        ),
    ] = ""
    audit_log_max_size: Annotated[int, msgspec.Meta(ge=1, description="megabytes of an audit log file")] = 100
    audit_log_max_backup: Annotated[int, msgspec.Meta(ge=0, description="number of older audit log files to keep")] = 10
    audit_log_mode: Annotated[
        Literal["batch", "blocking-strict"],
        msgspec.Meta(
            description="what happens when events cannot be written: batch drops and counts them, blocking-strict "
            "rejects requests"
        ),
    ] = "batch"
    certificate_seconds: Annotated[
        int,
        msgspec.Meta(ge=600, description="maximum lifetime of certificates issued to nodes and clients, in seconds"),
    ] = 365 * 86400
    finished_pods: Annotated[
        int, msgspec.Meta(ge=0, description="number of terminated pods to keep; beyond it, the oldest are deleted")
    ] = 12_500
    horizontal_pod_autoscaler_sync_period: Annotated[
        int, msgspec.Meta(ge=1, description="seconds between two evaluations of a HorizontalPodAutoscaler")
    ] = 15
    horizontal_pod_autoscaler_downscale_stabilization: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=3600,
            description="seconds for which the highest recommendation of a HorizontalPodAutoscaler counts before pods "
            "are removed",
        ),
    ] = 300
    horizontal_pod_autoscaler_tolerance: Annotated[
        float,
        msgspec.Meta(
            ge=0, description="ratio by which a metric may differ from its target before a HorizontalPodAutoscaler acts"
        ),
    ] = 0.1
    horizontal_pod_autoscaler_cpu_initialization_period: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="seconds after the start of a pod in which its CPU usage counts only while it is ready, for "
            "HorizontalPodAutoscalers",
        ),
    ] = msgspec.field(default=300, name="horizontalPodAutoscalerCPUInitializationPeriod")
    horizontal_pod_autoscaler_initial_readiness_delay: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="seconds after the start of a pod in which a change of its readiness is taken for that of its "
            "start, for HorizontalPodAutoscalers",
        ),
    ] = 30
    log_level: Annotated[LogLevel, msgspec.Meta(description="lowest level logged")] = "info"

    @property
    def kubeconfig_path(self) -> Path:
        """Return the path of the administrator's kubeconfig."""
        return Path(self.admin_kubeconfig) if self.admin_kubeconfig else Path(self.state_dir) / "admin.kubeconfig"

    @property
    def audit_path(self) -> Path | None:
        """Return the path of the audit log; None if there is none."""
        if self.audit_log_path == "none":
            return None
        return Path(self.audit_log_path) if self.audit_log_path else Path(self.state_dir) / "audit" / "audit.log"

    @property
    def plugin_name(self) -> str:
        """Return the plugin name in ClusterNetwork."""
        return types.PLUGIN_MULTITENANT if self.plugin == "ovs-multitenant" else types.PLUGIN_SUBNET


def parse_port_range(text: str) -> range:
    """Return the ports of FIRST-LAST. Raises ValueError."""
    first, dash, last = text.partition("-")
    ports = range(int(first), int(last) + 1) if dash else range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise ValueError(f"{text!r} is not a range of ports; for example 30000-32767 is accepted")
    return ports


def _service_problems(settings: MasterConfig) -> Iterator[str]:
    ports = settings.services_node_port_range
    try:
        parse_port_range(ports)
    except ValueError:
        yield problem(
            "servicesNodePortRange", ports, "FIRST-LAST between 1 and 65535, such as 30000-32767, is accepted"
        )
    for number, text in enumerate(settings.external_ip_network_cidrs):
        try:
            ipaddress.IPv4Network(text.removeprefix("!").strip())
        except ValueError:
            accepted = "an IPv4 network such as 203.0.113.0/24 is accepted, without host bits, also after '!'"
            yield problem(f"externalIPNetworkCIDRs[{number}]", text, accepted)


def _address_problems(settings: MasterConfig) -> Iterator[str]:
    yield from address_problems("listenAddress", (settings.listen_address,))
    yield from address_problems("advertiseAddress", (settings.advertise_address,), version=4)
    url = settings.master_public_url
    if not url:
        return
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or url != f"https://{parts.netloc}" or "@" in parts.netloc:
        accepted = "https://HOST or https://HOST:PORT is accepted, without a slash at the end"
        yield problem("masterPublicURL", url, accepted)


def config_problems(settings: MasterConfig) -> tuple[str, ...]:
    """Return what is wrong with the settings beyond their types, one sentence for each problem."""
    problems = [*_service_problems(settings), *_address_problems(settings)]
    lengths = {"clusterNetwork": ("hostSubnetLength", settings.host_subnet_length)}
    texts = {"clusterNetwork": settings.cluster_network, "serviceNetwork": settings.service_network}
    if settings.ingress_ip_network_cidr:
        texts["ingressIPNetworkCIDR"] = settings.ingress_ip_network_cidr
    for number, entry in enumerate(settings.more_cluster_networks):
        setting = f"moreClusterNetworks[{number}]"
        texts[f"{setting}.cidr"] = entry.cidr
        lengths[f"{setting}.cidr"] = (f"{setting}.hostSubnetLength", entry.host_subnet_length)
    networks: dict[str, ipaddress.IPv4Network] = {}
    for setting, text in texts.items():
        try:
            networks[setting] = ipaddress.IPv4Network(text)
        except ValueError:
            accepted = "an IPv4 network such as 10.128.0.0/14 is accepted, without host bits"
            problems.append(problem(setting, text, accepted))
    for setting, (field, bits) in lengths.items():
        network = networks.get(setting)
        if network is not None and bits > 32 - network.prefixlen:
            accepted = f"at most {32 - network.prefixlen} is accepted, the host bits of {setting} {network}"
            problems.append(problem(field, bits, accepted))
    for (name, network), (other_name, other_network) in itertools.combinations(networks.items(), 2):
        if network.overlaps(other_network):
            accepted = f"a network that does not overlap with {other_name} {other_network} is accepted"
            problems.append(problem(name, str(network), accepted))
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class ExternalNetworks:
    """The networks of external IPs: an address must be in one of `admitted` and in none of `excluded`."""

    admitted: tuple[IPv4Network, ...] = ()
    excluded: tuple[IPv4Network, ...] = ()

    @classmethod
    def read(cls, texts: Iterable[str]) -> ExternalNetworks:
        """Return the networks of a list of CIDRs. A CIDR after `!` is excluded. Raises ValueError."""
        texts = tuple(texts)
        return cls(
            tuple(IPv4Network(text) for text in texts if not text.startswith("!")),
            tuple(IPv4Network(text[1:].strip()) for text in texts if text.startswith("!")),
        )

    def __str__(self) -> str:
        admitted = ", ".join(map(str, self.admitted))
        if not admitted:
            return "the setting externalIPNetworkCIDRs accepts none"
        excluded = ", ".join(map(str, self.excluded))
        return f"an address in {admitted}{f' but not in {excluded}' if excluded else ''} is accepted"

    def admits(self, address: IPv4Address) -> bool:
        """Return whether a service may have the address."""
        if any(address in network for network in self.excluded):
            return False
        return any(address in network for network in self.admitted)


NO_EXTERNAL_NETWORKS = ExternalNetworks()

DEFAULT_NODE_PORTS = range(30000, 32768)


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The settings of services.

    `external` are the networks of external IPs, which users choose. `ingress` is the network of ingress IPs, which the
    master assigns to services of the type LoadBalancer; None if it assigns none.
    """

    node_ports: range = DEFAULT_NODE_PORTS
    external: ExternalNetworks = NO_EXTERNAL_NETWORKS
    ingress: IPv4Network | None = None


DEFAULT_SERVICE_CONFIG = ServiceConfig()


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The settings of the overlay network."""

    pools: SubnetPools
    service_network: IPv4Network
    plugin_name: str
    mtu: int | None = None
    services: ServiceConfig = DEFAULT_SERVICE_CONFIG


def network_config(settings: MasterConfig) -> NetworkConfig:
    """Return the settings of the overlay network."""
    first = ClusterNetworkEntryConfig(cidr=settings.cluster_network, host_subnet_length=settings.host_subnet_length)
    entries = (first, *settings.more_cluster_networks)
    return NetworkConfig(
        pools=SubnetPools(tuple(SubnetPool(IPv4Network(entry.cidr), entry.host_subnet_length) for entry in entries)),
        service_network=IPv4Network(settings.service_network),
        plugin_name=settings.plugin_name,
        mtu=settings.mtu,
        services=ServiceConfig(
            node_ports=parse_port_range(settings.services_node_port_range),
            external=ExternalNetworks.read(settings.external_ip_network_cidrs),
            ingress=IPv4Network(settings.ingress_ip_network_cidr) if settings.ingress_ip_network_cidr else None,
        ),
    )


@dataclass(frozen=True, slots=True)
class AutoscalingConfig:
    """The settings of HorizontalPodAutoscalers, in seconds, and the tolerance as a ratio."""

    sync_period: float = 15.0
    downscale_stabilization: float = 300.0
    tolerance: float = 0.1
    cpu_initialization_period: float = 300.0
    initial_readiness_delay: float = 30.0


def autoscaling_config(settings: MasterConfig) -> AutoscalingConfig:
    """Return the settings of HorizontalPodAutoscalers."""
    return AutoscalingConfig(
        sync_period=settings.horizontal_pod_autoscaler_sync_period,
        downscale_stabilization=settings.horizontal_pod_autoscaler_downscale_stabilization,
        tolerance=settings.horizontal_pod_autoscaler_tolerance,
        cpu_initialization_period=settings.horizontal_pod_autoscaler_cpu_initialization_period,
        initial_readiness_delay=settings.horizontal_pod_autoscaler_initial_readiness_delay,
    )
