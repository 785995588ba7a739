"""The kinds of the API, and the plural names of their collections. Pure."""

from __future__ import annotations

from api.core.certificates import CertificateSigningRequest
from api.core.config import ConfigMap, Secret
from api.core.endpoints import Endpoints, EndpointSlice, EndpointSliceV1beta1
from api.core.events import Event
from api.core.node import Lease, Namespace, Node
from api.core.pod import Pod
from api.core.services import Service
from api.core.storage import PersistentVolume, PersistentVolumeClaim
from api.meta.types import Object
from api.network.queries import NodeQuery
from api.network.types import ClusterNetwork, HostSubnet, NetNamespace, PodAddress, SlimPod

_PLURALS: dict[type[Object], str] = {
    Namespace: "namespaces",
    Node: "nodes",
    Pod: "pods",
    ConfigMap: "configmaps",
    Secret: "secrets",
    PersistentVolume: "persistentvolumes",
    PersistentVolumeClaim: "persistentvolumeclaims",
    ClusterNetwork: "clusternetworks",
    HostSubnet: "hostsubnets",
    NetNamespace: "netnamespaces",
    NodeQuery: "nodequeries",
    Event: "events",
    Lease: "leases",
    Service: "services",
    Endpoints: "endpoints",
    EndpointSlice: "endpointslices",
    CertificateSigningRequest: "certificatesigningrequests",
}

KINDS = tuple(_PLURALS)
"""The kinds that a manifest may contain."""

PLURALS: dict[type[Object], str] = {
    **_PLURALS,
    PodAddress: "podaddresses",
    SlimPod: "pods",
    EndpointSliceV1beta1: "endpointslices",
}
"""The plural names of these kinds, and of the other forms in which they are read."""

NAMESPACED: frozenset[type[Object]] = frozenset(
    {
        Pod,
        ConfigMap,
        Secret,
        Event,
        Lease,
        PersistentVolumeClaim,
        Service,
        Endpoints,
        EndpointSlice,
        PodAddress,
        SlimPod,
        EndpointSliceV1beta1,
    }
)
