"""The startup requests of Kubernetes components: every informer syncs and follows changes, and every write succeeds.

Once with WatchList, as components from 1.35 on open their informers, and once with LIST, page by page, and WATCH.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from master.serialization.messages import message_names, message_of
from master.server import routes
from tests.testbed.apiserver.component_startup import (
    ACCEPT,
    ACCEPT_METADATA,
    COMPONENTS,
    NEVER_THERE,
    NODE,
    WATCH_LIST,
    WORLD,
    Component,
    Informer,
)
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.protobuf_encoder import encoded
from tests.testbed.apiserver.raw_requests import RawClient, RawResponse

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
STRATEGIC = "application/strategic-merge-patch+json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
WAYS = ("WatchList", "LIST and WATCH")
MADE_BY_THE_MASTER = (
    "/api/v1/namespaces/red/serviceaccounts",
    "/api/v1/namespaces/red/endpoints",
    "/apis/apps/v1/namespaces/red/replicasets",
)


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[RawClient]:
    """Yield a client of the administrator, in a cluster with an object of every kind."""
    async with RawClient(server.kubeconfig) as wire:
        first = (await wire.request("GET", "/api/v1/namespaces/red")).code == 404
        for path, document in WORLD if first else ():
            got = await _post(wire, path, {"metadata": {"name": "x"}, **document})
            assert got.code == 201, (path, got)
        assert (await _post(wire, "/api/v1/nodes", {"metadata": {"name": NODE}})).code in (201, 409)
        for path in MADE_BY_THE_MASTER:
            async with asyncio.timeout(20):
                while not (await wire.request("GET", path)).document["items"]:
                    await asyncio.sleep(0.02)
        yield wire


async def _post(wire: RawClient, path: str, document: dict[str, Any]) -> RawResponse:
    """Create an object in protobuf, as components do by default."""
    where = routes.resolve_path(path)
    assert where is not None
    return await _send(wire, "POST", path, where.resource.type.API_VERSION, where.resource.kind, **document)


async def _send(wire: RawClient, method: str, path: str, version: str, kind: str, **document: Any) -> RawResponse:
    """Send a document in protobuf, also of a kind that is not stored; in JSON, if the kind has no message."""
    if message_of(version, kind) not in message_names():
        return await wire.request(method, path, {"apiVersion": version, "kind": kind, **document})
    return await wire.request(method, path, encoded({"apiVersion": version, "kind": kind, **document}), kind=PROTOBUF)


@asynccontextmanager
async def _as(server: ApiServer, component: Component, accept: str = ACCEPT) -> AsyncIterator[RawClient]:
    """Yield a client that impersonates a component."""
    headers = {"Impersonate-User": component.user, "Accept": accept}
    if component.groups:
        headers["Impersonate-Group"] = component.groups
    async with RawClient(server.kubeconfig, **headers) as wire:
        yield wire


# --- informers --------------------------------------------------------------------------------------------------------


def _name(obj: Any) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _touched(mark: str) -> Callable[[list[Any]], bool]:
    """Return a condition that is true when an informer is in sync and has received the change with that mark."""

    def enough(events: list[Any]) -> bool:
        return any(_is_end(event) for event in events) and any(
            (event["object"]["metadata"].get("labels") or {}).get("touched") == mark for event in events
        )

    return enough


def _is_end(event: Any) -> bool:
    notes = event["object"]["metadata"].get("annotations") or {}
    return event["type"] == "BOOKMARK" and notes.get(INITIAL_EVENTS_END) == "true"


async def _touch(admin: RawClient, informer: Informer, mark: str) -> tuple[str, str] | None:
    """Change an object that an informer sees, and return its name; None if it sees none. Only this change has
    the mark.
    """
    actual = [_name(obj) for obj in (await admin.request("GET", informer.path, **informer.query)).document["items"]]
    if not actual:
        return None
    namespace, name = next((key for key in actual if key[0] == "red"), actual[0])
    root, _, plural = informer.path.rpartition("/")
    root = root.partition("/namespaces/")[0] + (f"/namespaces/{namespace}" if namespace else "")
    patched = await admin.request("PATCH", f"{root}/{plural}/{name}", {"metadata": {"labels": {"touched": mark}}})
    assert patched.code == 200, (informer, patched)
    return namespace, name


async def _by_watch_list(admin: RawClient, wire: RawClient, informer: Informer) -> None:
    plural = informer.path.rpartition("/")[2]
    query = {**informer.query, **WATCH_LIST}
    if plural in NEVER_THERE:
        events = await wire.watch(informer.path, lambda actual: True, **query)
        assert _is_end(events[0]), events
        return
    before = {_name(obj) for obj in (await admin.request("GET", informer.path, **informer.query)).document["items"]}
    mark = uuid4().hex
    watching = asyncio.create_task(wire.watch(informer.path, _touched(mark), **query))
    touched = await _touch(admin, informer, mark)
    assert touched is not None, f"nothing to see for {informer}"
    events = await watching
    end = next(number for number, event in enumerate(events) if _is_end(event))
    assert {event["type"] for event in events[:end]} == {"ADDED"}
    seen = [_name(event["object"]) for event in events[:end]]
    assert len(seen) == len(set(seen))
    assert touched in seen
    assert len(before & set(seen)) >= len(before) - 1
    assert int(events[end]["object"]["metadata"]["resourceVersion"]) > 0


async def _by_list_and_watch(admin: RawClient, wire: RawClient, informer: Informer) -> None:
    plural = informer.path.rpartition("/")[2]
    actual: list[Any] = []
    page: dict[str, str] = {"limit": "1"}
    version = ""
    while page:
        got = await wire.request("GET", informer.path, **informer.query, **page)
        assert got.code == 200, (informer, got)
        actual += got.document["items"]
        assert len(got.document["items"]) <= 1
        more = got.document["metadata"].get("continue", "")
        assert version in ("", got.document["metadata"]["resourceVersion"])
        version = got.document["metadata"]["resourceVersion"]
        page = {"limit": "1", "continue": more} if more else {}
    assert len({_name(obj) for obj in actual}) == len(actual)
    query = {**informer.query, "resourceVersion": version, "allowWatchBookmarks": "true"}
    if plural in NEVER_THERE:
        assert actual == []
        ends = await wire.watch(informer.path, lambda events: True, timeoutSeconds="1", **query)
        assert [event["type"] for event in ends] == ["BOOKMARK"]
        return
    mark = uuid4().hex
    touched = await _touch(admin, informer, mark)
    assert touched in [_name(obj) for obj in actual]

    def has_touched_object(events: list[Any]) -> bool:
        return any((event["object"]["metadata"].get("labels") or {}).get("touched") == mark for event in events)

    events = await wire.watch(informer.path, has_touched_object, timeoutSeconds="300", **query)
    assert all(int(event["object"]["metadata"]["resourceVersion"]) > int(version) for event in events)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMPONENTS)
async def test_every_component_informer_syncs(server: ApiServer, admin: RawClient, name: str, way: str) -> None:
    component = COMPONENTS[name]
    sync = _by_watch_list if way == WAYS[0] else _by_list_and_watch
    async with _as(server, component) as wire, asyncio.TaskGroup() as group:
        for informer in component.informers:
            group.create_task(sync(admin, wire, informer))


@pytest.mark.parametrize("way", WAYS)
async def test_garbage_collector_watches_every_deletable_resource(
    server: ApiServer, admin: RawClient, way: str
) -> None:
    """It watches the metadata of every resource that discovery lists with the verbs list, watch and delete."""
    informers = []
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    async with _as(server, COMPONENTS["kube-controller-manager"], accept) as wire:
        for root in ("/api", "/apis"):
            for group in (await wire.request("GET", root)).document["items"]:
                version = group["versions"][0]
                name = group["metadata"].get("name", "")
                group_path = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
                informers += [
                    Informer(f"{group_path}/{resource['resource']}")
                    for resource in version["resources"]
                    if {"list", "watch", "delete"} <= set(resource["verbs"])
                ]
    assert len(informers) > 40
    assert not {informer.path.rpartition("/")[2] for informer in informers} & NEVER_THERE
    async with _as(server, COMPONENTS["kube-controller-manager"], ACCEPT_METADATA) as wire:
        for informer in informers:
            if way == WAYS[0]:
                ends = await wire.watch(informer.path, lambda events: _is_end(events[-1]), **WATCH_LIST)
                assert {event["object"]["kind"] for event in ends} == {"PartialObjectMetadata"}, informer
            else:
                got = await wire.request("GET", informer.path, limit="500", resourceVersion="0")
                assert (got.code, got.document["kind"]) == (200, "PartialObjectMetadataList"), informer


# --- what they ask and write beside -----------------------------------------------------------------------------------

STATUS = {
    "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    "nodeInfo": {"kubeletVersion": "v1.36.2", "architecture": "amd64", "swap": {"capacity": 0}},
    "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": True, "userNamespaces": False}}],
    "features": {"supplementalGroupsPolicy": True},
    "declaredFeatures": ["A"],
}
"""As a kubelet of 1.36 begins; what this master has no field for is dropped with a warning."""
CSI_NODE = "/apis/storage.k8s.io/v1/csinodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
EVENTS = "/api/v1/namespaces/default/events"
NEWER_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


async def _lead(wire: RawClient, namespace: str, name: str) -> None:
    """Acquire a lease: it is missing (404), created and renewed."""
    leases, spec = LEASES.format(namespace), {"holderIdentity": name, "leaseDurationSeconds": 15}
    assert (await wire.request("GET", f"{leases}/{name}")).code == 404
    assert (await _post(wire, leases, {"metadata": {"name": name}, "spec": spec})).code == 201
    held = (await wire.request("GET", f"{leases}/{name}")).document
    held["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z"
    assert (await wire.request("PUT", f"{leases}/{name}", held)).code == 200


async def test_kubelet_startup_requests_succeed(server: ApiServer, admin: RawClient) -> None:
    await admin.request("DELETE", f"/api/v1/nodes/{NODE}")
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u"}
    async with _as(server, COMPONENTS["kubelet"]) as kubelet:
        assert (await kubelet.request("GET", f"{CSI_NODE}/{NODE}", resourceVersion="0")).code == 404
        assert (await kubelet.request("GET", f"/api/v1/nodes/{NODE}")).code == 404
        node = {"metadata": {"name": NODE}, "status": STATUS}
        response = await _post(kubelet, "/api/v1/nodes", node)
        assert (response.code, response.document["status"]["addresses"]) == (201, STATUS["addresses"])
        assert (await _post(kubelet, "/api/v1/nodes", node)).code == 409
        await _lead(kubelet, "kube-node-lease", NODE)
        drivers = {"metadata": {"name": NODE, "ownerReferences": [owner]}, "spec": {"drivers": []}}
        assert (await _post(kubelet, CSI_NODE, drivers)).code == 201
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        got = await kubelet.request("PATCH", f"/api/v1/nodes/{NODE}/status", ready, kind=STRATEGIC)
        assert (got.code, got.document["status"]["conditions"][-1]["type"]) == (200, "Ready")

        mine = {"driver": "x", "nodeName": NODE, "pool": {"name": NODE, "resourceSliceCount": 1}}
        assert (await admin.request("POST", SLICES, {"metadata": {"name": "mine"}, "spec": mine})).code == 405
        mine_only = f"{SLICES}?fieldSelector=spec.nodeName={NODE}"
        assert (await _send(kubelet, "DELETE", mine_only, "resource.k8s.io/v1", "DeleteOptions")).code == 200
        assert (await admin.request("GET", SLICES)).document["items"] == []
        assert (await _send(kubelet, "DELETE", SLICES, "resource.k8s.io/v1", "DeleteOptions")).code == 403

        event = {
            "metadata": {"name": "starting"}, "involvedObject": {"kind": "Node", "name": NODE, "uid": NODE},
            "reason": "Starting", "source": {"component": "kubelet", "host": NODE}, "type": "Normal", "count": 1,
        }  # fmt: skip
        assert (await _post(kubelet, EVENTS, event)).code == 201
        assert (await kubelet.request("PATCH", f"{EVENTS}/starting", {"count": 2}, kind=STRATEGIC)).code == 200
        requested = {"verb": "get", "resource": "nodes", "subresource": "log"}
        review = {"user": "u", "resourceAttributes": requested}
        version = "authorization.k8s.io/v1"
        path = f"/apis/{version}/subjectaccessreviews"
        got = await _send(kubelet, "POST", path, version, "SubjectAccessReview", spec=review)
        assert (got.code, got.document["status"]["allowed"]) == (201, False)
        version = "authentication.k8s.io/v1"
        path = f"/apis/{version}/tokenreviews"
        got = await _send(kubelet, "POST", path, version, "TokenReview", spec={"token": "none"})
        assert (got.code, got.document["status"].get("authenticated", False)) == (201, False)


async def test_kubelet_pod_requests_succeed(server: ApiServer, admin: RawClient) -> None:
    pods = "/api/v1/namespaces/red/pods"
    document = {"metadata": {"name": "short"}, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": NODE}}
    uid = (await admin.request("POST", pods, document)).document["metadata"]["uid"]
    async with _as(server, COMPONENTS["kubelet"]) as kubelet:
        reference = {"kind": "Pod", "apiVersion": "v1", "name": "short", "uid": uid}
        token_spec = {"expirationSeconds": 3607, "boundObjectRef": reference}
        path = "/api/v1/namespaces/red/serviceaccounts/default/token"
        got = await _send(kubelet, "POST", path, "authentication.k8s.io/v1", "TokenRequest", spec=token_spec)
        assert (got.code, bool(got.document["status"]["token"])) == (201, True)
        assert (await kubelet.request("GET", f"{pods}/short")).code == 200
        phase = {"metadata": {"uid": uid}, "status": {"phase": "Running", "podIP": "10.128.0.9"}}
        assert (await kubelet.request("PATCH", f"{pods}/short/status", phase, kind=STRATEGIC)).code == 200
        assert (await admin.request("DELETE", f"{pods}/short")).code == 200
        end = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        ended = await _send(kubelet, "DELETE", f"{pods}/short", "v1", "DeleteOptions", **end)
        assert ended.code in (200, 404)
        assert (await admin.request("GET", f"{pods}/short")).code == 404


async def test_kube_proxy_writes_succeed(server: ApiServer, admin: RawClient) -> None:
    del admin
    event = {
        "metadata": {"name": "proxy.1"}, "regarding": {"kind": "Node", "name": NODE, "uid": NODE},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "kube-proxy",
        "reportingInstance": f"kube-proxy-{NODE}", "action": "StartKubeProxy", "reason": "Starting", "type": "Normal",
    }  # fmt: skip
    async with _as(server, COMPONENTS["kube-proxy"]) as proxy:
        got = await _post(proxy, NEWER_EVENTS, event)
        assert (got.code, got.document.get("reportingController")) == (201, "kube-proxy"), got


async def test_kube_scheduler_requests_succeed(server: ApiServer, admin: RawClient) -> None:
    async with _as(server, COMPONENTS["kube-scheduler"]) as scheduler:
        assert (await scheduler.request("GET", "/apis/events.k8s.io/v1")).code == 200
        await _lead(scheduler, "kube-system", "kube-scheduler")
        pod = "/api/v1/namespaces/red/pods/free"
        why = {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}
        assert (await scheduler.request("PATCH", f"{pod}/status", why, kind=STRATEGIC)).code == 200
        target = {"metadata": {"name": "free"}, "target": {"kind": "Node", "name": NODE}}
        bound = await _send(scheduler, "POST", f"{pod}/binding", "v1", "Binding", **target)
        assert (bound.code, bound.document["status"]) == (201, "Success")
        event = {
            "metadata": {"name": "free.1"}, "regarding": {"kind": "Pod", "namespace": "red", "name": "free"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "default-scheduler",
            "reportingInstance": "default-scheduler-m", "action": "Binding", "reason": "Scheduled", "type": "Normal",
        }  # fmt: skip
        path = NEWER_EVENTS.replace("default", "red")
        assert (await _post(scheduler, path, event)).code == 201
    reported = (
        await admin.request("GET", "/api/v1/namespaces/red/events", fieldSelector="involvedObject.name=free")
    ).document
    assert "Scheduled" in [reported_event["reason"] for reported_event in reported["items"]]


async def test_kube_controller_manager_requests_succeed(server: ApiServer, admin: RawClient) -> None:
    del admin
    async with _as(server, COMPONENTS["kube-controller-manager"]) as manager:
        assert (await manager.request("GET", "/healthz")).document == "ok"
        for path in ("/api", "/apis"):
            assert (await manager.request("GET", path)).code == 200
        await _lead(manager, "kube-system", "kube-controller-manager")
        accounts = "/api/v1/namespaces/kube-system/serviceaccounts"
        assert (await manager.request("GET", f"{accounts}/job-controller")).code == 404
        assert (await _post(manager, accounts, {"metadata": {"name": "job-controller"}})).code == 201
        path = f"{accounts}/job-controller/token"
        token_spec = {"expirationSeconds": 3600}
        got = await _send(manager, "POST", path, "authentication.k8s.io/v1", "TokenRequest", spec=token_spec)
        assert (got.code, bool(got.document["status"]["token"])) == (201, True)


async def test_signing_request_is_accepted_as_protobuf(server: ApiServer) -> None:
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    signer = "kubernetes.io/kube-apiserver-client-kubelet"
    spec = {"request": "bm9uZQ==", "signerName": signer, "usages": ["client auth"]}
    async with RawClient(server.kubeconfig) as wire:
        got = await _post(wire, path, {"metadata": {"name": "x"}, "spec": spec})
        assert (got.code, [cause["field"] for cause in got.document["details"]["causes"]]) == (422, ["spec.request"])


# --- configuration of authentication ----------------------------------------------------------------------------------

CONFIGURATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


async def test_configuration_of_authentication_is_there_and_comes_back(server: ApiServer) -> None:
    """A component reads from this ConfigMap who the clients and the front proxies of the cluster are."""
    expected = {
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "client-ca-file": (server.root / "state/pki/trusted.crt").read_text(),
        "requestheader-client-ca-file": (server.root / "state/pki/front-proxy-ca.crt").read_text(),
    }
    async with RawClient(server.kubeconfig) as wire:
        assert (await wire.request("GET", CONFIGURATION)).document["data"] == expected
        changes = {"data": {"requestheader-client-ca-file": "", "other": "stays"}}
        assert (await wire.request("PATCH", CONFIGURATION, changes)).code == 200
        async with asyncio.timeout(10):
            while (await wire.request("GET", CONFIGURATION)).document["data"] != {**expected, "other": "stays"}:
                await asyncio.sleep(0.02)
        assert (await wire.request("DELETE", CONFIGURATION)).code == 200
        async with asyncio.timeout(10):
            while (await wire.request("GET", CONFIGURATION)).document.get("data") != expected:
                await asyncio.sleep(0.02)
        role = (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/extension-apiserver-authentication-reader"
        )
        rules = (await wire.request("GET", role)).document["rules"]
        assert rules[0]["resourceNames"] == ["extension-apiserver-authentication"]
    async with _as(server, COMPONENTS["kube-scheduler"], "application/json") as scheduler:
        assert (await scheduler.request("GET", CONFIGURATION)).code == 200
