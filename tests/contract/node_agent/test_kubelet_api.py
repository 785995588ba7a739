"""The kubelet API on its port: authentication and authorization by a real master."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from api.client.bootstrap import node_kubeconfig
from api.client.client import Client
from api.client.kubeconfig import Kubeconfig
from api.core.oauth import token_name
from master.auth import pki
from node_agent.server.auth import ALLOWED_TTL_SECONDS, DENIED_TTL_SECONDS, TOKEN_TTL_SECONDS, RequestAuth
from node_agent.server.server import LIMITS, Route, Server, require_client_certificates
from reconcile.errors import Refused
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.untyped_client import UntypedClient
from tests.testbed.silent_connections import silent_connections
from tests.testbed.tls_connector import tls_connector

NODE = "node-1"
READER = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
PATHS = ("/pods", "/stats/summary", "/metrics/resource", "/exec/red/web/main", "/healthz")


def authority(server: ApiServer) -> pki.Authority:
    directory = server.kubeconfig.parent / "state" / "pki"
    key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return pki.Authority(key, x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Agent:
    """A door behind which every path of PATHS answers with its own name."""

    def __init__(self, url: str, ca: pki.Authority, root: Path, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self._ca = ca
        self._root = root

    @asynccontextmanager
    async def called_by(self, user: str, *groups: str) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield a session with a client certificate of the cluster, or without one if the name is empty."""
        context = ssl.create_default_context(cadata=self._ca.pem.decode())
        if user:
            identity = pki.client_identity(self._ca, user, groups, datetime.datetime.now(datetime.UTC))
            (self._root / "caller.pem").write_bytes(identity.key + identity.certificate)
            context.load_cert_chain(self._root / "caller.pem")
        async with aiohttp.ClientSession(self.url, connector=tls_connector(context)) as session:
            yield session


@pytest.fixture
async def agent(server: ApiServer, tmp_path: Path) -> AsyncIterator[Agent]:
    ca, clock = authority(server), Clock()
    pem = pki.server_certificate(ca, tmp_path, ("127.0.0.1",), datetime.datetime.now(datetime.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    admin = Kubeconfig.load(server.kubeconfig)
    async with Client(admin) as client:
        (tmp_path / "node").write_text(await node_kubeconfig(client, admin, NODE))
    async with Client(Kubeconfig.load(tmp_path / "node")) as client:
        routes = tuple(Route(path, _named, ("GET", "POST")) for path in PATHS)
        api_client = Server(
            "127.0.0.1", 0, require_client_certificates(ca.pem, context), RequestAuth(client, NODE, clock), routes
        )
        await api_client.listen()
        yield Agent(f"https://127.0.0.1:{api_client.port}", ca, tmp_path, clock)
        await api_client.stop()


async def _named(http: web.Request) -> web.Response:
    return web.Response(text=http.path)


async def query(session: aiohttp.ClientSession, path: str, token: str = "", method: str = "GET") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.request(method, path, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_kubelet_api_rejects_anonymous_requests(agent: Agent) -> None:
    async with agent.called_by("") as session:
        for path in (*PATHS, "/nowhere"):
            assert await query(session, path) == (401, "Unauthorized")
        assert await query(session, "/pods", token="made.up.token") == (401, "Unauthorized")
        async with session.get("/pods") as answer:
            assert answer.headers["Connection"] == "close", "one answer for a connection"


async def test_kubelet_api_accepts_the_masters_certificate_even_while_the_master_is_down(
    agent: Agent, server: ApiServer
) -> None:
    async with agent.called_by("kube-apiserver-kubelet-client", "system:masters") as session:
        for path in PATHS:
            assert await query(session, path) == (200, path)
        server.stop()
        try:
            assert await query(session, "/pods") == (200, "/pods")
            async with agent.called_by("eve") as other:
                code, words = await query(other, "/pods")
                assert (code, words.partition(" (")[0]) == (500, "Authorization error")
                assert await query(other, "/pods", token="x") == (code, words)
            async with agent.called_by("") as nobody:
                assert await query(nobody, "/pods", token="x") == (401, "Unauthorized")
        finally:
            server.start()


async def test_kubelet_api_answers_while_a_pod_floods_it_with_connections(agent: Agent) -> None:
    master = "kube-apiserver-kubelet-client", "system:masters"
    async with silent_connections(agent.url, ["127.0.0.2"] * 100) as attackers:
        await attackers.wait_until_open(LIMITS.per_source)
        async with agent.called_by(*master) as session:
            assert await query(session, "/pods") == (200, "/pods")
    more = [f"127.0.{high}.{low}" for high in (1, 2) for low in range(1, 201)]
    async with silent_connections(agent.url, more) as attackers:
        await attackers.wait_until_open(LIMITS.unauthenticated)
        async with agent.called_by(*master) as session:
            assert await query(session, "/pods") == (200, "/pods"), "has authenticated before"


async def test_kubelet_api_authorizes_by_node_subresources(agent: Agent, api_client: UntypedClient) -> None:
    await api_client.create(
        READER, name="figures", rules=[{"apiGroups": [""], "resources": ["nodes/stats"], "verbs": ["get"]}]
    )
    await api_client.create(
        READER, name="lists", rules=[{"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}]
    )
    await api_client.create(
        READER, name="everything-of-nodes", rules=[{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}]
    )
    for role, user in (("figures", "fred"), ("lists", "lisa"), ("everything-of-nodes", "paul")):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        await api_client.create(BINDINGS, name=user, roleRef=reference, subjects=[subject])
    allowed = {}
    for user in ("fred", "lisa", "paul", "eve"):
        async with agent.called_by(user) as session:
            allowed[user] = [path for path in PATHS if (await query(session, path))[0] == 200]
            assert {(await query(session, path, method="POST"))[0] for path in PATHS} == {403}
    assert allowed == {
        "fred": ["/stats/summary"],
        "lisa": ["/pods"],
        "paul": ["/pods", "/exec/red/web/main", "/healthz"],
        "eve": [],
    }
    async with agent.called_by("eve") as session:
        words = "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])"
        assert await query(session, "/pods") == (403, words)


async def test_kubelet_api_caches_authorization_answers(agent: Agent, api_client: UntypedClient) -> None:
    await api_client.create(
        READER, name="mighty", rules=[{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["*"]}]
    )
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mighty"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "max"}
    async with agent.called_by("max") as session:
        assert (await query(session, "/pods"))[0] == 403
        await api_client.create(BINDINGS, name="max", roleRef=reference, subjects=[subject])
        assert (await query(session, "/pods"))[0] == 403
        agent.clock.now += DENIED_TTL_SECONDS
        assert (await query(session, "/pods"))[0] == 200
        await api_client.request("DELETE", f"{BINDINGS}/max")
        assert (await query(session, "/pods"))[0] == 200
        agent.clock.now += ALLOWED_TTL_SECONDS
        assert (await query(session, "/pods"))[0] == 403


async def test_kubelet_api_authenticates_valid_tokens(agent: Agent, api_client: UntypedClient) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await api_client.create(accounts, name="robot")
    answer = await api_client.request("POST", f"{accounts}/robot/token", {"spec": {}})
    token = answer["status"]["token"]
    await api_client.create(
        READER, name="robots", rules=[{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}]
    )
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "robots"}
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    await api_client.create(BINDINGS, name="robots", roleRef=reference, subjects=[subject])
    async with agent.called_by("") as session:
        assert await query(session, "/pods", token) == (200, "/pods")
        await api_client.request("DELETE", f"{accounts}/robot")
        assert (await query(session, "/pods", token))[0] == 200
        agent.clock.now += TOKEN_TTL_SECONDS
        assert await query(session, "/pods", token) == (401, "Unauthorized")


async def test_kubelet_api_limits_tokens_of_users_to_their_scopes(agent: Agent, api_client: UntypedClient) -> None:
    user = await api_client.create("/apis/user.openshift.io/v1/users", name="ursula")
    await api_client.create(
        READER, name="readers", rules=[{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}]
    )
    group = "rbac.authorization.k8s.io"
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "readers"}
    subject = {"apiGroup": group, "kind": "User", "name": "ursula"}
    await api_client.create(BINDINGS, name="readers", roleRef=reference, subjects=[subject])
    statuses = {}
    async with agent.called_by("") as session:
        for number, scope in enumerate(("user:full", "user:info", "role:readers:*", "role:view:*")):
            token = f"sha256~{number:043}"
            await api_client.create(
                "/apis/oauth.openshift.io/v1/oauthaccesstokens",
                name=token_name(token),
                clientName="openshift-challenging-client",
                redirectURI="https://127.0.0.1/oauth/token/implicit",
                userName="ursula",
                userUID=user["metadata"]["uid"],
                scopes=[scope],
                expiresIn=3600,
            )
            statuses[scope] = (await query(session, "/pods", token))[0]
    assert statuses == {"user:full": 200, "user:info": 403, "role:readers:*": 200, "role:view:*": 403}


async def test_kubelet_api_closes_connections_with_a_foreign_certificate(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = pki.authority(tmp_path / "other", datetime.datetime.now(datetime.UTC))
    stranger = Agent(agent.url, other, tmp_path / "other", agent.clock)
    context_authority = agent._ca
    async with stranger.called_by("root", "system:masters") as session:
        connector = session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        assert isinstance(connector._ssl, ssl.SSLContext)
        connector._ssl.load_verify_locations(cadata=context_authority.pem.decode())
        with pytest.raises(aiohttp.ClientError):
            await query(session, "/pods")


def test_kubelet_api_requests_no_certificate_without_a_ca_and_rejects_an_invalid_ca() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert require_client_certificates(b"", context).verify_mode is ssl.CERT_NONE
    with pytest.raises(Refused, match="not a certificate in PEM"):
        require_client_certificates(b"nonsense", context)
