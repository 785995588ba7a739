"""Every kind that the API keeps, and where it is found."""

from __future__ import annotations

from api.configuration import ConfigMap, Secret
from api.endpoints import Endpoints, EndpointSlice, OlderEndpointSlice
from api.events import Event
from api.leases import Lease
from api.objects import ClusterNetwork, HostSubnet, Namespace, NetNamespace, Node, Object, Pod
from api.pod_addresses import PodAddress, SlimPod
from api.queries import NodeQuery
from api.services import Service
from api.signing_requests import CertificateSigningRequest
from api.storage import PersistentVolume, PersistentVolumeClaim

_KEPT: dict[type[Object], str] = {
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

KINDS = tuple(_KEPT)

PLURALS: dict[type[Object], str] = {
    **_KEPT,
    PodAddress: "podaddresses",
    SlimPod: "pods",
    OlderEndpointSlice: "endpointslices",
}
"""Also of other forms of these."""

NAMESPACED: frozenset[type[Object]] = frozenset(
    {
        *(Pod, ConfigMap, Secret, Event, Lease, PersistentVolumeClaim, Service, Endpoints, EndpointSlice),
        *(PodAddress, SlimPod, OlderEndpointSlice),
    }
)
