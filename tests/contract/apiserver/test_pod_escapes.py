"""What an editor of a project cannot make of pods, and what an administrator can: attempts to own the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.apiserver.users import user_session

PODS = "/api/v1/namespaces/red/pods"
IMAGE = "registry.example.com/app"


@pytest.fixture
async def ann(server: ApiServer, api_client: UntypedClient, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session of the editor of the project red."""
    await api_client.request("POST", "/api/v1/namespaces", {"metadata": {"name": "red"}})
    await api_client.request(
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings",
        {
            "metadata": {"name": "ann"},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
        },
    )
    async with user_session(server, tmp_path, "ann") as session:
        yield session


def pod(
    spec: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    shared: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    **container: Any,
) -> dict[str, Any]:
    """Return a pod. `context` is the security context of its container, `shared` that of the pod."""
    main = {"name": "main", "image": IMAGE, "securityContext": dict(context or {}), **container}
    return {
        "metadata": {"generateName": "try-", "annotations": dict(annotations or {})},
        "spec": {"securityContext": dict(shared or {}), "containers": [main], **(spec or {})},
    }


def with_container(field: str, context: Mapping[str, Any]) -> dict[str, Any]:
    return pod({field: [{"name": "other", "image": IMAGE, "securityContext": context}]})


def volume(**source: Any) -> dict[str, Any]:
    return pod({"volumes": [{"name": "v", **source}]}, volumeMounts=[{"name": "v", "mountPath": "/v"}])


POWERS = ("SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "SYS_MODULE", "DAC_READ_SEARCH", "MKNOD", "BPF", "ALL")
ATTEMPTS: Mapping[str, dict[str, Any]] = {
    "the node's root directory": volume(hostPath={"path": "/"}),
    "Docker's socket": volume(hostPath={"path": "/var/run/docker.sock", "type": "Socket"}),
    "NFS as root": volume(nfs={"server": "10.0.0.1", "path": "/"}),
    "privileged": pod(context={"privileged": True}),
    "privileged init container": with_container("initContainers", {"privileged": True}),
    "network of the node": pod({"hostNetwork": True}),
    "processes of the node": pod({"hostPID": True}),
    "memory of the node": pod({"hostIPC": True}),
    "port of the node": pod(ports=[{"containerPort": 80, "hostPort": 80}]),
    "DNS port of the node": pod(ports=[{"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]),
    "port of the kubelet": pod(ports=[{"containerPort": 80, "hostPort": 10250, "hostIP": "127.0.0.1"}]),
    "root": pod(context={"runAsUser": 0}),
    "root for the pod": pod(shared={"runAsUser": 0}),
    "root in an init container": with_container("initContainers", {"runAsUser": 0}),
    "user of another project": pod(context={"runAsUser": 1_000_000_000}),
    "files of the group root": pod(shared={"fsGroup": 0}),
    "files of another project": pod(shared={"fsGroup": 1_000_000_000}),
    "label of another project": pod(shared={"seLinuxOptions": {"level": "s0:c1,c0"}}),
    "type of the node": pod(context={"seLinuxOptions": {"type": "spc_t"}}),
    "privilege escalation": pod(context={"allowPrivilegeEscalation": True}),
    "all system calls": pod(context={"seccompProfile": {"type": "Unconfined"}}),
    "all system calls for the pod": pod(shared={"seccompProfile": {"type": "Unconfined"}}),
    "another profile": pod(context={"seccompProfile": {"type": "Localhost", "localhostProfile": "mine.json"}}),
    "all system calls by annotation": pod(
        annotations={"container.seccomp.security.alpha.kubernetes.io/main": "unconfined"}
    ),
    "no AppArmor": pod(context={"appArmorProfile": {"type": "Unconfined"}}),
    "all of /proc": pod(context={"procMount": "Unmasked"}),
    "user namespace that Docker cannot give": pod({"hostUsers": False}),
    "sysctl of the node": pod(shared={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    "another SCC": pod(context={"privileged": True}, annotations={"openshift.io/required-scc": "privileged"}),
    "a false SCC": pod(context={"privileged": True}, annotations={"openshift.io/scc": "privileged"}),
    "a false subject": pod(
        context={"privileged": True},
        annotations={"security.openshift.io/validated-scc-subject-type": "serviceaccount"},
    ),
    "a false mirror pod": pod(context={"privileged": True}, annotations={"kubernetes.io/config.mirror": "x"}),
    "choice of the node": pod({"nodeName": "node-1"}),
    "eviction of others": pod({"priorityClassName": "system-node-critical"}),
    **{f"capability {power}": pod(context={"capabilities": {"add": [power]}}) for power in POWERS},
    "capability with a prefix": pod(context={"capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
}
MALFORMED = ("a false mirror pod", "user namespace that Docker cannot give")
"""Attempts that are no valid request of an administrator either."""


async def create(session: aiohttp.ClientSession, path: str, document: Any) -> tuple[int, str]:
    async with session.post(path, json=document) as answer:
        body = await answer.json()
        return answer.status, body.get("message", "")


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_editor_cannot_and_administrator_can(
    ann: aiohttp.ClientSession, api_client: UntypedClient, attempt: str
) -> None:
    status, message = await create(ann, PODS, ATTEMPTS[attempt])
    assert status in (403, 422), message
    if attempt not in MALFORMED:
        assert status == 403, message
        created = await api_client.request("POST", PODS, ATTEMPTS[attempt], dryRun="All")
        assert created["kind"] == "Pod", created


async def test_editor_can_create_an_ordinary_pod(ann: aiohttp.ClientSession) -> None:
    assert await create(ann, PODS, pod()) == (201, "")


async def test_workload_of_an_editor_gets_no_pod_and_says_why(
    ann: aiohttp.ClientSession, api_client: UntypedClient
) -> None:
    labels = {"app": "mighty"}
    template = {"metadata": {"labels": labels}, "spec": pod(context={"privileged": True})["spec"]}
    document = {
        "metadata": {"name": "mighty"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    status, message = await create(ann, "/apis/apps/v1/namespaces/red/deployments", document)
    assert (status, message) == (201, "")
    deployment = await api_client.wait_until(
        "/apis/apps/v1/namespaces/red/deployments/mighty",
        lambda actual: any(each["type"] == "ReplicaFailure" for each in actual.get("status", {}).get("conditions", [])),
    )
    (failure,) = (each for each in deployment["status"]["conditions"] if each["type"] == "ReplicaFailure")
    assert "Privileged containers are not allowed" in failure["message"]
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "red"}
    role = {"kind": "ClusterRole", "name": "system:openshift:scc:privileged", "apiGroup": "rbac.authorization.k8s.io"}
    await api_client.create(
        "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings",
        name="mighty",
        subjects=[account],
        roleRef=role,
    )
    pods = await api_client.wait_until(f"{PODS}?labelSelector=app=mighty", lambda actual: bool(actual.get("items")))
    assert pods["items"][0]["metadata"]["annotations"]["openshift.io/scc"] == "privileged"
    await api_client.request("DELETE", "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings/mighty")


async def test_editor_cannot_grant_an_scc(ann: aiohttp.ClientSession) -> None:
    binding = {
        "metadata": {"name": "more"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "red"}],
        "roleRef": {
            "kind": "ClusterRole", "name": "system:openshift:scc:anyuid", "apiGroup": "rbac.authorization.k8s.io",
        },
    }  # fmt: skip
    status, _ = await create(ann, "/apis/rbac.authorization.k8s.io/v1/namespaces/red/rolebindings", binding)
    assert status == 403
    for path in ("/apis/security.openshift.io/v1/securitycontextconstraints", "/api/v1/securitycontextconstraints"):
        status, _ = await create(ann, path, {"metadata": {"name": "mine"}, "users": ["ann"]})
        assert status == 403


async def test_pods_of_two_projects_never_have_the_same_user(api_client: UntypedClient) -> None:
    names = [f"many-{number}" for number in range(20)]
    created = await asyncio.gather(
        *(api_client.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}}) for name in names)
    )
    ranges = {namespace["metadata"]["annotations"]["openshift.io/sa.scc.uid-range"] for namespace in created}
    levels = {namespace["metadata"]["annotations"]["openshift.io/sa.scc.mcs"] for namespace in created}
    assert len(ranges) == len(levels) == len(names)
