"""Names, addresses, directories and processes of a lab. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

SIZE = 3
MAX_NODES = 100
UNDERLAY_BRIDGE = "brphy"
MARK = "PODLANE_LAB"
"""In the environment of every process of a lab: the lab's `Site.run_dir`."""

PLUGINS = ("ovs-multitenant", "ovs-subnet")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")
REGISTRY = "127.0.0.1:5000"
"""Address of the lab's registry, on this machine and on every node. Docker asks loopback addresses without TLS."""

REGISTRY_NAMES = (REGISTRY, "localhost:5000")
"""The registry in names of images."""

INTERNAL_PROXY = "127.0.0.1:9"
"""The proxy of Docker on the nodes of an internal lab, which refuses everything (`lab/relay.py`)."""

OVS_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


@dataclass(frozen=True, slots=True)
class Site:
    """Names and addresses of one lab; several labs may run on one machine. `underlay` is a /24."""

    prefix: str
    underlay: IPv4Network

    @property
    def outside(self) -> IPv4Address:
        """The address of this machine in the underlay."""
        return self.underlay.network_address + 1

    @property
    def master(self) -> IPv4Address:
        """The master's address."""
        return self.underlay.network_address + 2

    @property
    def ingress(self) -> IPv4Network:
        """The network of the addresses of load balancers: 10.246.2.0/24 beside the underlay 10.245.2.0/24."""
        return IPv4Network((self.underlay.network_address + (1 << 16), self.underlay.prefixlen))

    @property
    def bridge(self) -> str:
        """The bridge of the underlay."""
        return f"{self.prefix}0"

    @property
    def master_namespace(self) -> str:
        """The master's network namespace."""
        return f"{self.prefix}-master"

    @property
    def master_veth(self) -> str:
        """The end of the master's veth pair on this machine."""
        return f"{self.prefix}-m"

    @property
    def node_namespace(self) -> str:
        """The prefix of the names of the nodes' namespaces."""
        return f"{self.prefix}-node-"

    @property
    def node_veth_prefix(self) -> str:
        """The prefix of the names of the nodes' veth devices."""
        return f"{self.prefix}-n"

    @property
    def run_dir(self) -> Path:
        """A short link to the lab's state: paths of unix sockets may have only 107 characters."""
        return Path(f"/run/{self.prefix}-lab")

    @property
    def forwarding_mark(self) -> Path:
        """The file that says that the lab switched forwarding on. It outlives the state directory."""
        return Path(f"/run/{self.prefix}-lab.forwarding-was-off")


SITE = Site("podlane", IPv4Network("10.245.2.0/24"))
"""The site of `make lab`."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the lab. It is started when every file in `needs` exists.

    `namespace` is a network namespace, None that of this machine; `environment` is added to the supervisor's own.
    """

    name: str
    namespace: str | None
    command: tuple[str, ...]
    pid_file: Path
    log_file: Path
    needs: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LabNode:
    """A node of the lab: `number` counts from 1, `root` is its directory."""

    site: Site
    number: int
    root: Path

    @property
    def name(self) -> str:
        """Name of the node in the cluster."""
        return f"node-{self.number}"

    @property
    def namespace(self) -> str:
        """Name of its network namespace."""
        return f"{self.site.node_namespace}{self.number}"

    @property
    def address(self) -> IPv4Address:
        """Address of the node in the underlay."""
        return self.site.underlay.network_address + 2 + self.number

    @property
    def veth(self) -> str:
        """The end of the node's veth pair on this machine."""
        return f"{self.site.node_veth_prefix}{self.number}"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig with the node's certificate."""
        return self.root / "kubeconfig"

    @property
    def docker_socket(self) -> Path:
        """Socket of the node's dockerd."""
        return self.root / "docker.sock"

    @property
    def agent_socket(self) -> Path:
        """Socket of the node agent, for pods that root submits."""
        return self.root / "node-agent.sock"

    @property
    def sdn_socket(self) -> Path:
        """Socket of the node's podlane-sdn."""
        return self.root / "sdn.sock"

    @property
    def ovs(self) -> Path:
        """Directory with the database and sockets of the node's Open vSwitch."""
        return self.root / "ovs"


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab. `state` is the real path of the state directory, `bin_dir` has the commands of this project.

    The nodes of an `internal` lab reach each other and this machine only. `registry`: the lab runs a registry.
    """

    site: Site
    state: Path
    bin_dir: Path
    size: int
    plugin: str
    internal: bool = False
    registry: bool = False

    @property
    def root(self) -> Path:
        """The state directory, by its short link."""
        return self.site.run_dir

    @property
    def nodes(self) -> tuple[LabNode, ...]:
        """The nodes."""
        return tuple(LabNode(self.site, number, self.root / f"node-{number}") for number in range(1, self.size + 1))

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The network namespaces of the master and of every node."""
        return (self.site.master_namespace, *(node.namespace for node in self.nodes))

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def command(self) -> Path:
        """The link to the command podlane, for PATH."""
        return self.root / "bin" / "podlane"

    @property
    def users(self) -> Path:
        """The directory with password and kubeconfig of each demo user."""
        return self.root / "users"

    @property
    def master_settings(self) -> Path:
        """The settings file of the master."""
        return self.root / "master" / "master.yaml"


EXTERNAL_IP_NETWORK = "203.0.113.0/24"
"""Network of external addresses of services: a documentation network (RFC 5737), which no host uses."""

CLUSTER_HOSTS = ("10.128.0.0/14", "172.30.0.0/16", EXTERNAL_IP_NETWORK, ".cluster.local")
"""Networks of pods and services, and the names of services."""


def proxy_exceptions(environment: Mapping[str, str], site: Site) -> dict[str, str]:
    """Return the variables that keep hosts of the lab from the proxies of this machine; none without a proxy."""
    if not any(environment.get(name) for name in PROXY_VARIABLES):
        return {}
    given = next((environment[name] for name in NO_PROXY_VARIABLES if environment.get(name)), "")
    value = ",".join([*filter(None, given.split(",")), str(site.underlay), str(site.ingress), *CLUSTER_HOSTS])
    return dict.fromkeys(NO_PROXY_VARIABLES, value)


def processes(lab: Lab, relayed: Sequence[str] = ()) -> tuple[Process, ...]:
    """Return all processes in the order in which they start; they are stopped in reverse.

    `relayed` are the endpoints of this machine that nodes reach at loopback addresses of their own.
    """
    return (
        *((registry_process(lab),) if lab.registry else ()),
        *((relay_process(lab, relayed),) if relayed else ()),
        *(process for node in lab.nodes for process in switch_processes(node)),
        master_process(lab),
        *(docker_process(lab, node) for node in lab.nodes),
        *(process for node in lab.nodes for process in daemon_processes(lab, node)),
    )


def registry_process(lab: Lab) -> Process:
    """Return the registry, which keeps its images in the state directory."""
    return Process(
        name="registry",
        namespace=None,
        command=("docker-registry", "serve", f"{lab.root}/registry/config.yml"),
        pid_file=lab.root / "registry" / "registry.pid",
        log_file=lab.root / "registry" / "registry.log",
    )


def relay_process(lab: Lab, relayed: Sequence[str]) -> Process:
    """Return the relay from loopback addresses of the nodes to those of this machine."""
    return Process(
        name="relay",
        namespace=None,
        command=(str(lab.bin_dir / "python"), "-m", "lab.relay", ",".join(lab.namespaces), *relayed),
        pid_file=lab.root / "relay.pid",
        log_file=lab.root / "relay.log",
    )


def master_process(lab: Lab) -> Process:
    """Return the master, which has a network namespace of its own."""
    state = lab.root / "master"
    return Process(
        name="master",
        namespace=lab.site.master_namespace,
        command=(
            str(lab.bin_dir / "podlane-master"),
            f"--config={lab.master_settings}",
            f"--advertise-address={lab.site.master}",
            f"--state-dir={state}",
            f"--admin-kubeconfig={lab.kubeconfig}",
            f"--plugin={lab.plugin}",
            f"--external-ip-network-cidrs=[{EXTERNAL_IP_NETWORK}]",
            f"--ingress-ip-network-cidr={lab.site.ingress}",
            "--verify-node-certificates=true",
            "--self-provisioning=true",
        ),
        pid_file=state / "master.pid",
        log_file=state / "master.log",
    )


def switch_processes(node: LabNode) -> tuple[Process, Process]:
    """Return the Open vSwitch of a node, with a database and sockets of its own."""
    log = node.root / "log"
    database = Process(
        name=f"{node.name} ovsdb-server",
        namespace=node.namespace,
        command=(
            "ovsdb-server",
            str(node.ovs / "conf.db"),
            f"--remote=punix:{node.ovs}/db.sock",
            f"--unixctl={node.ovs}/ovsdb-server.ctl",
            "--no-chdir",
            "-vconsole:warn",
        ),
        pid_file=node.ovs / "ovsdb-server.pid",
        log_file=log / "ovsdb-server.log",
        environment=_ovs_environment(node),
    )
    switch = Process(
        name=f"{node.name} ovs-vswitchd",
        namespace=node.namespace,
        command=(
            "ovs-vswitchd",
            f"unix:{node.ovs}/db.sock",
            f"--unixctl={node.ovs}/ovs-vswitchd.ctl",
            "--no-chdir",
            "-vconsole:warn",
        ),
        pid_file=node.ovs / "ovs-vswitchd.pid",
        log_file=log / "ovs-vswitchd.log",
        needs=(node.ovs / "db.sock",),
        environment=_ovs_environment(node),
    )
    return database, switch


def _ovs_environment(node: LabNode) -> tuple[tuple[str, str], ...]:
    return tuple((key, str(node.ovs)) for key in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"))


KEPT_DOCKER_SETTINGS = ("insecure-registries", "max-concurrent-downloads", "proxies", "registry-mirrors")
"""Keys of daemon.json (https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file)."""


def docker_process(lab: Lab, node: LabNode) -> Process:
    """Return the dockerd of a node.

    The proxy of an internal lab makes pulls fail at once, with the reason. The configuration file is the node's own,
    because that of this machine may contradict these options. Root file systems of containers need a path without
    symbolic links.
    """
    docker = node.root / "docker-run"
    return Process(
        name=f"{node.name} dockerd",
        namespace=node.namespace,
        command=(
            "dockerd",
            f"--config-file={node.root}/docker.json",
            f"--data-root={lab.state}/{node.name}/docker",
            f"--exec-root={docker}/exec",
            f"--host=unix://{node.docker_socket}",
            f"--pidfile={docker}/pid",
            "--bridge=none",
            "--iptables=false",
            "--ip-forward=false",
            "--storage-driver=overlay2",
            "--log-level=warn",
        ),
        pid_file=node.root / "dockerd.pid",
        log_file=node.root / "log" / "dockerd.log",
        environment=tuple((name, f"http://{INTERNAL_PROXY}") for name in PROXY_VARIABLES) if lab.internal else (),
    )


def docker_settings(machine: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a node's dockerd from those of this machine: those that tell how registries are asked."""
    return {key: value for key, value in machine.items() if key in KEPT_DOCKER_SETTINGS}


def daemon_processes(lab: Lab, node: LabNode) -> tuple[Process, Process]:
    """Return the two daemons of a node, which start when it has its certificate."""
    common = (f"--node-name={node.name}", f"--node-ip={node.address}", f"--kubeconfig={node.kubeconfig}")
    sdn = Process(
        name=f"{node.name} sdn",
        namespace=node.namespace,
        command=(
            str(lab.bin_dir / "podlane-sdn"),
            f"--state-dir={node.root}/sdn",
            *common,
            f"--socket={node.sdn_socket}",
            f"--ovs-rundir={node.ovs}",
            f"--cni-conf-dir={node.root}/cni",
        ),
        pid_file=node.root / "sdn.pid",
        log_file=node.root / "log" / "sdn.log",
        needs=(node.kubeconfig,),
    )
    agent = Process(
        name=f"{node.name} node-agent",
        namespace=node.namespace,
        command=(
            str(lab.bin_dir / "podlane-node-agent"),
            f"--config={node.root}/node-agent.yaml",
            *common,
            f"--state-dir={node.root}/node-agent",
            f"--docker-socket={node.docker_socket}",
            f"--sdn-socket={node.sdn_socket}",
            f"--manifest-dir={node.root}/manifests",
            f"--cgroup-root=/{node.namespace}",
            f"--pod-logs-dir={node.root}/log/pods",
            f"--container-logs-dir={node.root}/log/containers",
            f"--socket={node.agent_socket}",
        ),
        pid_file=node.root / "node-agent.pid",
        log_file=node.root / "log" / "node-agent.log",
        needs=(node.kubeconfig,),
    )
    return sdn, agent
