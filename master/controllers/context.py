"""What controllers read: their dependencies, and the newest state of objects.

The state includes writes that are not yet durable.
"""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.core.certificates import CertificateSigningRequest
from api.core.node import Namespace
from api.meta.types import O, Object
from master.admission.cursors import read_cursor
from master.allocators import AllocatorCursor
from master.auth.attributes import Authorize
from master.config import AutoscalingConfig, NetworkConfig
from master.controllers.actions import Action
from master.controllers.autoscaling.metrics_client import ExtensionAPIs, NoExtensionAPIs, PodMetricsReader
from master.registry.aggregated_apis import NO_CONTENTS, AggregatedAPIs, RemoteContents
from master.registry.creation import ObjectCreation
from master.registry.custom_kinds import CustomKinds
from master.resources.group_resource import GroupResource
from master.resources.metadata import Clock
from master.resources.resource import AnyResource
from master.resources.scheme import BY_KIND, CustomKind, group_resource
from master.storage.interface import Key, Record, Storage, WatchEvent

Sign = Callable[[CertificateSigningRequest], bytes]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address and port of the API server."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """The dependencies of the controllers."""

    store: Storage
    network: NetworkConfig
    creation: ObjectCreation
    ca_certificate: str
    """The certificate of the cluster's authority, as PEM."""
    node_grace_seconds: float
    """How long a node may not report before it is not ready."""
    server_address: Callable[[], ServerAddress | None]
    """None until the server listens."""
    public_url: Callable[[], str]
    """Returns the URL of the server for users; empty until the server listens."""
    sign_token: Callable[[Mapping[str, Any]], str]
    """Returns a service account token with these claims."""
    clock: Clock
    """The time of day."""
    max_terminated_pods: int
    version: str
    """The version of this master, as `v0.1.0`."""
    authorize: Authorize
    """Whether a user may do something."""
    issue_certificate: Sign
    """Returns the certificate for an approved request."""
    pod_metrics: PodMetricsReader
    """The collector of the usage of pods."""
    extension_apis: ExtensionAPIs = field(default_factory=NoExtensionAPIs)
    """The API groups of extension API servers."""
    autoscaling: AutoscalingConfig = field(default_factory=AutoscalingConfig)
    """The settings of HorizontalPodAutoscalers."""
    uses_sccs: bool = True
    """Whether SCCs decide what pods may be."""
    self_provisioning: bool = False
    """Whether users who have logged in by OAuth may request projects."""
    local_storage_class: bool = True
    """Whether the StorageClass of local volumes is created."""
    custom_kinds: CustomKinds | None = None
    """The kinds that CustomResourceDefinitions define; None where there are none."""
    remote_contents: Callable[[Namespace], RemoteContents | None] = field(default=lambda namespace: NO_CONTENTS)
    """Returns what a terminating namespace has on other servers, whose deletion begins with the first call; None while
    it is not known.
    """
    front_proxy_ca: str = ""
    """The authority of the certificate that the master shows to aggregated API servers, as PEM; empty for none."""
    aggregated_apis: AggregatedAPIs | None = None
    """The API versions that other servers serve; None where there are none."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds of a clock that never jumps."""
    hostname: Callable[[], str] = socket.gethostname


class Lister:
    """The newest state of objects. It is live: a second read sees what the controller has written meanwhile."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.backoffs: CreateBackoffs = {}

    @property
    def custom_kinds(self) -> Sequence[CustomKind]:
        """Return the kinds that CustomResourceDefinitions define at this moment."""
        kinds = self.context.custom_kinds
        return () if kinds is None else kinds.scheme.custom_kinds

    def stored_resource(self, obj: Object) -> AnyResource:
        """Return the resource as which an object is stored."""
        resource = BY_KIND.get(obj.KIND)
        if resource is not None and isinstance(obj, resource.type):
            return resource
        assert self.context.custom_kinds is not None
        return self.context.custom_kinds.scheme.stored_resource(obj)

    @property
    def create_errors(self) -> dict[str, str]:
        """Return why nothing could be created for an owner, by its uid."""
        return {uid: backoff.message for uid, backoff in self.backoffs.items()}

    @property
    def now(self) -> datetime.datetime:
        """Return the time of day."""
        return self.context.clock()

    def list(self, kind: type[O], namespace: str = "") -> Sequence[O]:
        """Return all objects of a kind, of one namespace or of all."""
        return self.list_resource(group_resource(kind), namespace)

    def list_kind(self, kind: str, namespace: str = "") -> Sequence[Any]:
        """Return all objects of a kind by its name."""
        return self.list_resource(BY_KIND[kind].group_resource, namespace)

    def records(self, resource: GroupResource) -> Sequence[Record]:
        """Return the records of all objects of a resource."""
        return self.context.store.list_uncommitted(resource)

    def list_resource(self, resource: GroupResource, namespace: str = "") -> Sequence[Any]:
        """Return all objects of a resource, of one namespace or of all."""
        return [record.object for record in self.context.store.list_uncommitted(resource, namespace)]

    def get(self, kind: type[O], name: str, namespace: str = "") -> O | None:
        """Return an object; None if it does not exist."""
        obj: O | None = self._get(Key(group_resource(kind), namespace, name))
        return obj

    def _get(self, key: Key) -> Any:
        record = self.context.store.get_uncommitted(key)
        return None if record is None else record.object

    def cursor(self, name: str) -> AllocatorCursor:
        """Return the stored cursor of an allocator, or a new one."""
        return read_cursor(name, self._get)


@dataclass(frozen=True, slots=True)
class CreateBackoff:
    """The back-off of an owner after a rejected create: for how many seconds, and until when (monotonic clock)."""

    namespace: str
    message: str
    seconds: float
    until: float


CreateBackoffs = Mapping[str, CreateBackoff]
"""By the uid of the owner."""

RESYNC_SECONDS = 30.0


def resources_of(*kinds: str) -> tuple[GroupResource, ...]:
    """Return the resources of kinds of this scheme, in this order."""
    return tuple(BY_KIND[kind].group_resource for kind in kinds)


FREQUENTLY_WRITTEN_RESOURCES = resources_of("Event", "Lease", "NodeQuery")
"""Resources whose objects are written all the time, and for whose deletion nothing waits."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A reconcile function, and what triggers it."""

    name: str
    """The name in log lines, that of kube-controller-manager if it has the controller."""
    watches: tuple[GroupResource, ...]
    """A change of an object of one of these resources triggers a pass.

    The resources that the controller writes are among them, so that a change by hand is undone at once. A resource that
    is read and not watched is noticed with the next resync.
    """
    reconcile: Callable[[Lister], Iterable[Action]]
    resync: float = RESYNC_SECONDS
    """Seconds after which a pass starts without a change. If `awaits_time` returns False, at least RESYNC_SECONDS."""
    awaits_time: Callable[[Lister], bool] = field(default=lambda lister: True)
    """Return whether the controller may have something to do within `resync` although no object changes.

    Without it, the controllers of jobs and workloads would read all pods every second, or every 5 seconds.
    """
    required_for_startup: bool = False
    """Whether the server starts after the first pass only."""
    observe: Callable[[WatchEvent], None] | None = None
    """Called with every event of the watched resources, before the pass that the event triggers."""
    event_filter: Callable[[WatchEvent], bool] = field(default=lambda event: True)
    """Return whether an event of a watched resource triggers a pass. By default every event does."""
    watches_custom_kinds: bool = False
    """Whether a change of an object of a custom kind triggers a pass, too."""
    has_pending: Callable[[], bool] = field(default=lambda: False)
    """Return whether a pass has left work for another one, which begins when other tasks have run."""
    prepare: Callable[[Lister], Awaitable[None]] | None = None
    """Awaited before each pass: reads what is not in the store, such as metrics of nodes. It limits the time itself."""
