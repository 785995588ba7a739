"""The controllers of the master, one row for each: what wakes it, and what it wishes of what it sees.

The deciding is in the modules that the rows name; here stands only what each of them looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from api.core.config import Secret
from api.meta.types import Object, OwnerReference
from master.access import accounts, bootstrap_tokens
from master.access.serving import Reserved
from master.admission import quotas
from master.controllers import (
    account_secrets,
    bootstrap,
    certificates,
    claims,
    dependents,
    ending_namespaces,
    forgetting,
    happenings,
    protection,
    roles,
)
from master.controllers.look import Look
from master.controllers.network import endpoint_mirroring, ingress_addresses, lanes, master_service, subnets
from master.controllers.nodes import node_taints, pod_garbage
from master.controllers.scheduling import placements
from master.controllers.workloads import cron_jobs, daemon_sets, deployments, disruptions, jobs, replicas, stateful_sets
from master.kinds import BY_NAME, STORED
from master.kinds.service_account import ServiceAccount
from master.kinds.storage_class import usual_class
from master.writing.outcomes import Outcome

ROLLOUT_SECONDS = 5.0
"""Time between two looks for what becomes so by time alone: a pod that has been ready for long enough."""

JOB_SECONDS = 1.0
"""Time between two looks for deadlines of jobs, for retries and for times of cron jobs that have come."""

EXPIRY_SECONDS = 60.0
"""Time between two looks for what is to be forgotten."""

USUAL_SECONDS = 30.0

REPLICATING = ("ReplicaSet", "ReplicationController")
FLEETING = ("Event", "Lease", "NodeQuery")
"""Kinds whose objects come and go all the time, and for which nobody waits."""

OWNED = tuple(kind.name for kind in STORED if kind.name not in FLEETING)
"""Kinds whose objects go with their owners."""

SCALED = tuple(kind.name for kind in STORED if kind.scaling is not None)
"""Kinds whose objects say how many pods they want."""

CONTENTS = tuple(kind.name for kind in STORED if kind.namespaced)


@dataclass(frozen=True, slots=True)
class Controller:
    """`kinds`: a change of one of these brings the next pass, at the latest it comes after `resync` seconds.

    `opens`: the server opens when its first pass is done.
    """

    name: str
    kinds: tuple[str, ...]
    decide: Callable[[Look], Iterable[Outcome]]
    resync: float = USUAL_SECONDS
    opens: bool = False


def _network(look: Look) -> Iterator[Outcome]:
    wish, nodes, namespaces = look.env.wish, look.all("Node"), look.all("Namespace")
    yield from bootstrap.bootstrap(wish, namespaces, look.one("ClusterNetwork", "default"))
    yield from subnets.host_subnets(wish, nodes, look.all("HostSubnet"), look.cursor("subnets"))
    yield from lanes.net_namespaces(wish, namespaces, look.all("NetNamespace"), look.cursor("vnids"))


def _master_service(look: Look) -> Iterable[Outcome]:
    place, name = look.env.place(), master_service.NAME
    if place is None:
        return ()
    endpoints = look.one("Endpoints", name, master_service.NAMESPACE)
    found = look.all("Service"), endpoints, look.all("EndpointSlice")
    return master_service.passes(look.env.wish.service_network, place, *found)


def _account_secrets(look: Look) -> Iterable[Outcome]:
    def signed(account: ServiceAccount, secret: Secret) -> str:
        return look.env.sign(accounts.lasting_claims(account, secret, look.now))

    found = look.all("Secret"), look.all("ServiceAccount")
    return account_secrets.passes(*found, look.env.authority, signed)


def _claims(look: Look) -> Iterable[Outcome]:
    """What is bound or set free now is looked at again before anything may go."""
    volumes, wishes = look.all("PersistentVolume"), look.all("PersistentVolumeClaim")
    found: list[Outcome] = list(claims.bindings(volumes, wishes, usual_class(look.all("StorageClass"))))
    if not found and any(item.metadata.deletion_timestamp for item in (*volumes, *wishes)):
        found = list(protection.releases(volumes, wishes, look.all("Pod")))
    return found


def _scheduler(look: Look) -> Iterable[Outcome]:
    nodes, pods, budgets = look.all("Node"), look.all("Pod"), look.all("PodDisruptionBudget")
    return placements.passes(nodes, pods, look.all("Namespace"), budgets, look.now)


def _deployments(look: Look) -> Iterable[Outcome]:
    found = look.all("Deployment")
    return deployments.passes(found, look.all("ReplicaSet"), look.all("Pod"), look.now) if found else ()


def _replicas(look: Look) -> Iterable[Outcome]:
    owners = [item for kind in REPLICATING for item in look.all(kind)]
    return replicas.passes(owners, look.all("Pod"), look.now, look.refused) if owners else ()


def _disruptions(look: Look) -> Iterable[Outcome]:
    if not (found := look.all("PodDisruptionBudget")):
        return ()
    scaled = [item for kind in SCALED for item in look.all(kind)]
    return disruptions.passes(found, look.all("Pod"), scaled, look.now)


def _daemon_sets(look: Look) -> Iterable[Outcome]:
    if not (found := look.all("DaemonSet")):
        return ()
    return daemon_sets.passes(found, look.all("Node"), look.all("Pod"), look.all("ControllerRevision"), look.now)


def _stateful_sets(look: Look) -> Iterable[Outcome]:
    if not (found := look.all("StatefulSet")):
        return ()
    claims, kept = look.all("PersistentVolumeClaim"), look.all("ControllerRevision")
    return stateful_sets.passes(found, look.all("Pod"), claims, kept, look.now)


def _cron_jobs(look: Look) -> Iterable[Outcome]:
    found = look.all("CronJob")
    return cron_jobs.passes(found, look.all("Job"), look.now) if found else ()


def _jobs(look: Look) -> Iterable[Outcome]:
    return jobs.passes(look.all("Job"), look.all("Pod"), look.now, look.refused)


def _quotas(look: Look) -> Iterable[Outcome]:
    found = look.all("ResourceQuota")
    return quotas.passes(found, look.all, look.now) if found else ()


def _dependents(look: Look) -> Iterable[Outcome]:
    objects = [item for kind in OWNED for item in look.all(kind)]
    return dependents.passes(objects, resolves, lambda item, row: happenings.foreign_owner(item, row, look.now))


def resolves(row: OwnerReference, item: Object) -> bool:
    """Whether the owner can be looked for: its kind is kept, and its namespace is that of the object, if it has one."""
    kind = BY_NAME.get(row.kind)
    if kind is None or row.api_version != kind.type.API_VERSION:
        return False
    return bool(item.metadata.namespace) or not kind.namespaced


def _namespaces(look: Look) -> Iterable[Outcome]:
    namespaces = look.all("Namespace")
    if not any(item.metadata.deletion_timestamp for item in namespaces):
        return ()
    return ending_namespaces.passes(namespaces, [item for kind in CONTENTS for item in look.all(kind)], look.now)


def _unready(look: Look) -> Iterator[Outcome]:
    """Pods of nodes that nobody hears of are not Ready."""
    for one in node_taints.unready_pods(look.all("Node"), look.all("Pod"), look.now):
        yield one
        yield happenings.unready(one.item, look.now)


def _approvals(look: Look) -> Iterable[Outcome]:
    found = look.all("CertificateSigningRequest")
    if not found:
        return ()
    place, wish = look.env.place(), look.env.wish
    networks = (*(pool.network for pool in wish.pools.pools), wish.service_network)
    reserved = Reserved(
        networks, place.address if place else "", frozenset((*master_service.HOSTS, look.env.host().lower()))
    )
    return certificates.approvals(found, look.all("Node"), reserved, look.env.may, look.now)


def _signings(look: Look) -> Iterable[Outcome]:
    return certificates.signings(look.all("CertificateSigningRequest"), look.env.issue, look.now)


def _expiry(look: Look) -> Iterator[Outcome]:
    """Nothing waits for it: a look now and then is enough."""
    yield from forgetting.old_queries(look.all("NodeQuery"), look.now)
    yield from forgetting.old_events(look.all("Event"), look.now)
    yield from forgetting.old_requests(look.all("CertificateSigningRequest"), look.now)
    yield from forgetting.old_tokens(look.all("Secret", bootstrap_tokens.NAMESPACE), look.now)
    yield from pod_garbage.finished(look.all("Pod"), look.env.finished_pods)


def _of_all(passes: Callable[..., Iterable[Outcome]], *kinds: str) -> Callable[[Look], Iterable[Outcome]]:
    """A controller that sees everything of these kinds, in this order."""
    return lambda look: passes(*(look.all(kind) for kind in kinds))


MASTER_SERVICE = "master service"
MIRRORED = ("Service", "Endpoints", "EndpointSlice")

STATEFUL = ("StatefulSet", "ControllerRevision", "PersistentVolumeClaim", "Pod")

CONTROLLERS = (
    Controller("network", ("Namespace", "Node", "HostSubnet", "NetNamespace", "ClusterNetwork"), _network, opens=True),
    Controller(
        "service network",
        ("ServiceCIDR",),
        lambda look: bootstrap.service_cidr(look.env.wish, look.one("ServiceCIDR", bootstrap.SERVICE_CIDR_NAME)),
    ),
    Controller(
        "priority classes", ("PriorityClass",), _of_all(bootstrap.priority_classes, "PriorityClass"), opens=True
    ),
    Controller(
        MASTER_SERVICE, ("Service", "Endpoints", "EndpointSlice", "ClusterNetwork"), _master_service, opens=True
    ),
    Controller("account secrets", ("Secret", "ServiceAccount"), _account_secrets),
    Controller(
        "accounts",
        ("Namespace", "ServiceAccount", "ConfigMap"),
        lambda look: accounts.passes(
            look.all("Namespace"), look.all("ServiceAccount"), look.all("ConfigMap"), look.env.authority
        ),
    ),
    Controller(
        "roles",
        ("ClusterRole", "ClusterRoleBinding"),
        _of_all(roles.passes, "ClusterRole", "ClusterRoleBinding"),
        opens=True,
    ),
    Controller("certificate approvals", ("CertificateSigningRequest", "Node"), _approvals),
    Controller("certificates", ("CertificateSigningRequest",), _signings),
    Controller("scheduler", ("Pod", "Node"), _scheduler),
    Controller("deployments", ("Deployment", "ReplicaSet", "Pod"), _deployments, ROLLOUT_SECONDS),
    Controller("replicas", (*REPLICATING, "Pod"), _replicas, ROLLOUT_SECONDS),
    Controller("disruptions", ("PodDisruptionBudget", "Pod", *SCALED), _disruptions),
    Controller("daemon-sets", ("DaemonSet", "ControllerRevision", "Node", "Pod"), _daemon_sets, ROLLOUT_SECONDS),
    Controller("stateful-sets", STATEFUL, _stateful_sets, ROLLOUT_SECONDS),
    Controller("cron-jobs", ("CronJob", "Job"), _cron_jobs, JOB_SECONDS),
    Controller("jobs", ("Job", "Pod"), _jobs, JOB_SECONDS),
    Controller("quotas", tuple(kind.name for kind in quotas.COUNTABLE if kind.name not in FLEETING), _quotas),
    Controller(
        "ingress addresses",
        ("Service",),
        lambda look: ingress_addresses.passes(
            look.env.wish.services.ingress, look.all("Service"), look.cursor("ingress-addresses")
        ),
    ),
    Controller("mirrored-endpoints", MIRRORED, _of_all(endpoint_mirroring.passes, *MIRRORED)),
    Controller("claims", ("PersistentVolume", "PersistentVolumeClaim", "StorageClass", "Pod"), _claims),
    Controller("dependents", OWNED, _dependents),
    Controller("namespaces", ("Namespace", *(name for name in CONTENTS if name not in FLEETING)), _namespaces),
    Controller("taints", ("Node",), lambda look: node_taints.tainted(look.all("Node"), look.now)),
    Controller("unready", ("Node",), _unready),
    Controller("expiry", (), _expiry, EXPIRY_SECONDS),
)
