"""Hostile people, pages, clients and tenants against the OAuth server and against the tokens that it issued."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections import Counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import psutil
import pytest

from api.client.kubeconfig import Kubeconfig
from api.core.oauth import token_name
from tests.testbed.apiserver.oauth import PASSWORDS, OAuthSession, oauth_session, token_session
from tests.testbed.apiserver.oauth_fuzz import RawConnection, Secrets, fault, hostile_request, location_of
from tests.testbed.apiserver.process import ApiServer

OAUTH = "/apis/oauth.openshift.io/v1"
CLIENT_SECRET = "s3cret" * 8


async def make_client(admin: aiohttp.ClientSession, name: str, **fields: Any) -> None:
    document = {"metadata": {"name": name}, "grantMethod": "auto", "secret": CLIENT_SECRET, **fields}
    async with admin.post(f"{OAUTH}/oauthclients", json=document) as response:
        assert response.status in (201, 409), await response.text()


async def cookies_of(browser: OAuthSession, user: str) -> dict[str, str]:
    """Return the cookies of a browser after a login."""
    answer = await browser.log_in("/login?then=/x", user, PASSWORDS[user])
    assert answer.location == "/x"
    return browser.cookies()


# --- random requests --------------------------------------------------------------------------------------------------

REQUESTS = 400


async def fuzz(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession, count: int, seed: int
) -> Counter[str]:
    """Send random requests, check each response and the tokens in the store, and return how often what happened."""
    await make_client(admin, "strict", redirectURIs=["https://app.example/back"])
    cookies = await cookies_of(browser, "alice")
    sessions, csrf, codes = (cookies["__Host-ssn"],), cookies["__Host-csrf"], ["sha256~x"]
    config = Kubeconfig.load(server.kubeconfig)
    origins = (
        *(server.url, "https://app.example", "https://proxy.example"),
        *("http://127.0.0.1", "http://[::1]", "http://127.0.0.1:1", "http://[::1]:1"),
    )
    url = urlsplit(server.url)
    context = ssl.create_default_context(cadata=config.ca.decode())
    connection = RawConnection(str(url.hostname), url.port or 443, context)
    chance, seen, clients_of_codes, ended = random.Random(seed), Counter[str](), {}, False
    for number in range(count):
        if number % 20 == 0:
            await connection.close()
            ended = True
        if ended:
            # A session serves one authorization, and a request of these may be a logout.
            sessions = ((await cookies_of(browser, "alice"))["__Host-ssn"],)
        request = hostile_request(chance, Secrets(sessions, csrf, tuple(codes[-20:]), CLIENT_SECRET))
        async with asyncio.timeout(10):
            response = await connection.send(request)
        seen[response[9:12].decode() or "closed"] += 1
        if not response:
            continue
        assert not fault(response, origins), (fault(response, origins), request, response)
        target = urlsplit(location_of(response))
        code = parse_qs(target.query).get("code", [""])[0]
        ended = bool(code) or "access_token" in target.fragment
        if code:
            seen["code"] += 1
            codes.append(code)
            own = {"app.example": "strict", str(url.hostname): ""}.get(target.hostname or "", "openshift-cli-client")
            clients_of_codes[token_name(code)] = own if target.port != url.port else "openshift"
        seen["token in a fragment"] += "access_token" in target.fragment
        seen["token redeemed"] += b'"access_token"' in response or b"Your API token is" in response
    await connection.close()
    async with admin.get(f"{OAUTH}/oauthaccesstokens") as answer:
        tokens = (await answer.json())["items"]
    for token in tokens:
        assert token["clientName"].startswith(clients_of_codes.get(token.get("authorizeToken", ""), "")), token
    return seen


async def test_random_requests_gain_nothing(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    """No redirect to another place, no failure of the server, no token for another client, no response after 10 s."""
    seen = await fuzz(server, admin, browser, REQUESTS, seed=15)
    assert seen["code"] > 3, seen
    assert seen["200"] > 20, seen
    assert psutil.Process(server.pid).memory_info().rss < 300 << 20
    for line in server.log().splitlines():
        assert "Traceback" not in line
        assert not [password for password in PASSWORDS.values() if password in line]


# --- scopes -----------------------------------------------------------------------------------------------------------


async def status_of(
    server: ApiServer, token: str, method: str, path: str, document: Any = None, **headers: str
) -> tuple[int, str]:
    """Return status and body of the response to a request with a token."""
    async with (
        token_session(server, token) as session,
        session.request(method, path, json=document, headers=headers) as response,
    ):
        return response.status, await response.text()


ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GRANT = {
    "metadata": {"name": "steal"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
}
ESCALATIONS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/api/v1/namespaces/default/secrets", None),
    ("GET", "/api/v1/namespaces/kube-system/pods", None),
    ("GET", "/api/v1/pods", None),
    ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}}),
    ("POST", f"{RBAC}/clusterrolebindings", GRANT),
    ("POST", f"{RBAC}/namespaces/default/rolebindings", GRANT),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}),
    (
        "POST",
        f"{ACCESS_REVIEWS}/subjectaccessreviews",
        {"spec": {"user": "bob", "nonResourceAttributes": {"path": "/"}}},
    ),
    ("GET", f"{OAUTH}/oauthaccesstokens", None),
    ("GET", f"{OAUTH}/useroauthaccesstokens", None),
    ("GET", f"{OAUTH}/oauthclients", None),
    ("POST", f"{OAUTH}/oauthclients", {"metadata": {"name": "mine"}, "grantMethod": "auto"}),
    ("DELETE", f"{OAUTH}/oauthaccesstokens", None),
    ("POST", "/apis/user.openshift.io/v1/groups", {"metadata": {"name": "g"}, "users": ["alice"]}),
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}}),
    ("GET", "/metrics", None),
)


async def test_scoped_token_of_an_administrator_gains_no_more_than_its_scope(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    binding = {**GRANT, "metadata": {"name": "alice-is-admin"}}
    async with admin.post(f"{RBAC}/clusterrolebindings", json=binding) as response:
        assert response.status == 201
    full = await browser.token("alice")
    for scope in ("role:edit:default", "role:cluster-admin:*", "user:info user:check-access"):
        async with token_session(server, await browser.token("alice", scope=scope)) as session:
            for method, path, document in (*ESCALATIONS, ("GET", "/api", None)):
                headers = {"Impersonate-User": "system:admin"} if path == "/api" else {}
                async with session.request(method, path, json=document, headers=headers) as response:
                    body = await response.text()
                assert response.status == 403, (scope, method, path, body)
                assert f"scopes [{scope}] prevent this action" in body
    edit = await browser.token("alice", scope="role:edit:default")
    assert (await status_of(server, edit, "GET", "/api/v1/namespaces/default/pods"))[0] == 200
    async with token_session(server, full) as session:
        for path in [path for method, path, _ in ESCALATIONS if method == "GET"]:
            async with session.get(path) as response:
                assert response.status == 200, path
    checking = await browser.token("alice", scope="user:check-access")
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default"}}}
    for token, allowed in ((checking, False), (full, True)):
        _, body = await status_of(server, token, "POST", f"{ACCESS_REVIEWS}/selfsubjectaccessreviews", review)
        assert f'"allowed":{"true" if allowed else "false"}' in body.replace(" ", ""), body
    async with admin.delete(f"{RBAC}/clusterrolebindings/alice-is-admin") as response:
        assert response.status == 200


# --- tokens of others -------------------------------------------------------------------------------------------------


async def test_own_tokens_can_be_read_and_deleted_only(
    server: ApiServer, browser: OAuthSession, admin: aiohttp.ClientSession
) -> None:
    alice, bob = await browser.token("alice"), await browser.token("bob")
    path = f"{OAUTH}/useroauthaccesstokens"
    name = token_name(bob)
    forged = {"metadata": {"name": name}, "userName": "bob", "clientName": "strict", "scopes": ["user:full"]}
    apply = {"Content-Type": "application/apply-patch+yaml"}
    for method, target, document, headers, statuses in (
        ("POST", path, forged, {}, {403, 405}),
        ("DELETE", path, None, {}, {403, 405}),
        ("PUT", f"{path}/{name}", forged, {}, {403, 405}),
        ("PATCH", f"{path}/{name}?fieldManager=x&force=true", forged, apply, {403, 405}),
        ("GET", f"{path}/{name}", None, {}, {404}),
        ("DELETE", f"{path}/{name}", None, {}, {404}),
        ("PATCH", f"{OAUTH}/oauthaccesstokens/{name}?fieldManager=x", forged, apply, {403}),
        ("PUT", f"{OAUTH}/oauthclientauthorizations/alice:strict", forged, {}, {403}),
    ):
        status, body = await status_of(server, alice, method, target, document, **headers)
        assert status in statuses, (method, target, status, body)
        assert bob not in body
    _, body = await status_of(server, alice, "GET", f"{path}?fieldSelector=metadata.name={name}")
    assert '"items":[]' in body
    _, body = await status_of(server, alice, "GET", path)
    revision = json.loads(body)["metadata"]["resourceVersion"]
    foreign, own = token_name(await browser.token("bob")), token_name(await browser.token("alice"))
    watched = []
    async with (
        token_session(server, alice) as session,
        session.get(f"{path}?watch=true&resourceVersion={revision}") as response,
    ):
        async for line in response.content:
            watched.append(json.loads(line)["object"]["metadata"]["name"])
            if own in watched:
                break
    assert foreign not in watched
    assert (await status_of(server, bob, "DELETE", f"{path}/{name}"))[0] == 200
    assert (await status_of(server, bob, "GET", "/apis/user.openshift.io/v1/users/~"))[0] == 401
    table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with admin.get(f"{OAUTH}/oauthaccesstokens", headers=table) as response:
        assert alice not in await response.text()


async def test_system_names_cannot_be_stored(admin: aiohttp.ClientSession) -> None:
    """Even an administrator cannot make a User or a Group that the master takes for one of its own."""
    group = "/apis/user.openshift.io/v1"
    for plural, name, status in (
        ("groups", "system:masters", 422),
        ("groups", "system:nodes", 422),
        ("users", "system:admin", 422),
        ("users", "system:serviceaccount:kube-system:default", 422),
        ("users", "kube:admin", 422),
        ("users", "b64:c3lzdGVtOmFkbWlu", 201),
        ("groups", "masters", 201),
    ):
        async with admin.post(f"{group}/{plural}", json={"metadata": {"name": name}}) as response:
            assert response.status == status, (name, await response.text())


# --- browsers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["logout", "authorization"])
async def test_copy_of_a_session_ends_with_it(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession, end: str
) -> None:
    await make_client(admin, "strict", redirectURIs=["https://app.example/back"])
    target = "/oauth/authorize?client_id=strict&response_type=code"
    copied = await cookies_of(browser, "alice")
    headers = {"Cookie": f"__Host-ssn={copied['__Host-ssn']}"}
    async with oauth_session(server) as thief, oauth_session(server) as other:
        await cookies_of(other, "alice")
        if end == "logout":
            assert (await browser.post("/logout", {})).status == 200
        else:
            assert "code" in (await browser.get(target)).query
        assert (await thief.get(target, headers=headers)).location.startswith("/login")
        assert "code" in (await other.get(target)).query, "another session of the user goes on"
    async with oauth_session(server) as thief:
        copied = await cookies_of(browser, "alice")
        headers = {"Cookie": f"__Host-ssn={copied['__Host-ssn']}"}
        assert "code" in (await thief.get(target, headers=headers)).query, "a copy works until the session ends"


async def test_session_ends_with_its_user(admin: aiohttp.ClientSession, browser: OAuthSession) -> None:
    """Neither the session of a deleted user nor that of an earlier one of the name is good for a code."""
    await make_client(admin, "strict", redirectURIs=["https://app.example/back"])
    target = "/oauth/authorize?client_id=strict&response_type=code"
    await cookies_of(browser, "carol")
    assert "code=" in (await browser.get(target)).location
    cookies = await cookies_of(browser, "carol")
    headers = {"Cookie": f"__Host-ssn={cookies['__Host-ssn']}"}
    users = "/apis/user.openshift.io/v1/users"
    async with admin.delete(f"{users}/carol") as response:
        assert response.status == 200
    assert (await browser.get(target, headers=headers)).location.startswith("/login")
    async with admin.post(users, json={"metadata": {"name": "carol"}, "identities": ["local:carol"]}) as response:
        assert response.status == 201
    assert (await browser.get(target, headers=headers)).location.startswith("/login")
    for name in (f"{users}/carol", "/apis/user.openshift.io/v1/identities/local:carol"):
        async with admin.delete(name) as response:
            assert response.status == 200


async def test_cookie_without_the_prefix_for_this_host_is_no_csrf_token(browser: OAuthSession) -> None:
    """Another host of the same domain can put cookies into the browser, but none with the prefix."""
    form = {"then": "/x", "csrf": "c" * 43, "username": "bob", "password": PASSWORDS["bob"]}
    for name in ("csrf", "__host-csrf", "__Secure-csrf", "__Host-ssn"):
        refused = await browser.post("/login", form, headers={"Cookie": f"{name}={'c' * 43}"})
        assert refused.query["reason"] == "token_expired"
    odd = await browser.post("/login", form, headers={"Cookie": f"__Host-csrf={'ü' * 43}"})
    assert odd.query["reason"] == "token_expired"
    own = await browser.post("/login", form, headers={"Cookie": f"__Host-csrf={'c' * 43}"})
    assert own.location == "/x"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_other_methods_have_no_effect(browser: OAuthSession, method: str) -> None:
    await cookies_of(browser, "bob")
    target = "/oauth/authorize?client_id=openshift-browser-client&response_type=code"
    answer = await browser.send(method, target)
    assert (answer.status, answer.location, answer.headers["Allow"]) == (405, "", "GET, POST")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "code=" in (await browser.get(target)).location


@pytest.mark.parametrize(
    "path",
    ["/x//oauth/authorize", "/OAuth/authorize", "/oauth/authorize/", "/oauth%2Fauthorize%2F", "/oauth/authorize;x"],
)
async def test_other_spelling_of_a_path_is_another_path(browser: OAuthSession, path: str) -> None:
    await cookies_of(browser, "bob")
    answer = await browser.get(f"{path}?client_id=openshift-browser-client&response_type=code")
    assert (answer.status in (403, 404), answer.location) == (True, ""), answer


# --- what a proxy's users are asked -----------------------------------------------------------------------------------


async def test_user_of_a_proxy_is_asked_without_a_session(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    await make_client(admin, "asks", redirectURIs=["https://app.example/back"], grantMethod="prompt")
    target, headers = "/oauth/authorize?client_id=asks&response_type=code", {"X-Remote-User": "dora"}
    async with oauth_session(server, server.root / "proxy.pem") as proxy:
        asked = (await proxy.get(target, headers=headers)).location
        page = await proxy.get(asked, headers=headers)
        assert "your account (dora)" in page.text
        form = {name: page.hidden(name) for name in ("then", "csrf", "client_id", "user_name", "redirect_uri")}
        form |= {"approve": "yes", "scope": "user:info"}
        forged = await proxy.post(asked, {**form, "csrf": "x" * 43}, headers=headers)
        assert forged.status == 400
        other = await proxy.post(asked, form, headers={"X-Remote-User": "eve"})
        assert other.status == 400
        approved = await proxy.post(asked, form, headers=headers)
        assert "code=" in (await proxy.get(approved.location, headers=headers)).location
    assert (await browser.get(asked, headers=headers)).location.startswith("/oauth/authorize?")
    assert (await browser.get(target, headers=headers)).location.startswith("/login")


# --- records ----------------------------------------------------------------------------------------------------------


async def recorded_until(server: ApiServer, audit_id: str) -> str:
    """Return the logs of a server once they have the event of a request, and so those of all requests before it."""
    audit_log = server.root / "state" / "audit" / "audit.log"
    async with asyncio.timeout(20):
        while audit_id not in (recorded := audit_log.read_text()):
            await asyncio.sleep(0.02)
    return recorded + server.log()


async def test_records_have_neither_passwords_nor_codes(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    """A name that nobody has is not recorded: it may be a password in the wrong field."""
    await make_client(admin, "strict", redirectURIs=["https://app.example/back"])
    await browser.token("alice")
    slips = ("hunter2-in-the-name-field", "hunter2-at-the-challenge", "hunter2-the-password")
    await browser.log_in("/login?then=/x", slips[0], slips[2])
    await browser.challenge(slips[1], slips[2], response_type="token")
    await browser.challenge("alice", slips[2], response_type="token")
    cookies = await cookies_of(browser, "alice")
    back = await browser.get("/oauth/authorize?client_id=strict&response_type=code&state=the-state-of-the-client")
    code = back.query["code"]
    for path in (
        "/oauth/info",
        "/oauth/token/display",
        "/x//oauth/authorize",
        "/oauth/authorize/x",
        "/oauth2callback/x",
    ):
        await browser.get(f"{path}?code={code}&access_token={code}")
    redeemed = await browser.redeem("strict", CLIENT_SECRET, code=code, redirect_uri="https://app.example/back")
    assert redeemed.status == 200, redeemed.text
    async with admin.get("/api/v1/events") as response:
        events = await response.text()
    async with admin.get("/api/v1/namespaces/default") as response:
        recorded = events + await recorded_until(server, response.headers["Audit-Id"])
    secrets = (*slips, *PASSWORDS.values(), *cookies.values(), code, code[7:], CLIENT_SECRET, "the-state-of-the-client")
    for secret in secrets:
        assert secret not in recorded, secret
    assert '"authentication.openshift.io/username":"(unknown)"' in recorded
    assert '"authentication.openshift.io/username":"alice","authentication.openshift.io/decision":"deny"' in recorded


async def test_tokens_where_none_belongs_are_not_recorded(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    """The name of a token object is a hash, so the audit log says which token was deleted."""
    token, name = await browser.token("alice"), token_name(await browser.token("alice"))
    async with token_session(server, token) as alice:
        for target in (
            f"/api?access_token={token}",
            f"/api?x={token}",
            f"/{token}",
            f"{OAUTH}/oauthaccesstokens/{token}",
        ):
            async with alice.get(target, headers={"User-Agent": token, "Referer": token, "X-Forwarded-For": token}):
                pass
        async with alice.delete(f"{OAUTH}/oauthaccesstokens/{token}") as response:
            assert response.status == 404
        async with alice.delete(f"{OAUTH}/oauthaccesstokens/{name}") as response:
            assert response.status == 200
            audit_id = response.headers["Audit-Id"]
    recorded = await recorded_until(server, audit_id)
    assert token[7:] not in recorded
    deletion = next(json.loads(line) for line in recorded.splitlines() if audit_id in line)
    assert deletion["requestURI"] == f"{OAUTH}/oauthaccesstokens/{name}"
    assert deletion["objectRef"]["name"] == name


# --- many at once -----------------------------------------------------------------------------------------------------


async def test_parallel_first_logins_make_one_user(admin: aiohttp.ClientSession, browser: OAuthSession) -> None:
    answers = await asyncio.gather(
        *(browser.challenge("carol", PASSWORDS["carol"], response_type="token") for _ in range(15))
    )
    assert all("access_token" in answer.fragment for answer in answers), [answer.status for answer in answers]
    async with admin.get("/apis/user.openshift.io/v1/users/carol") as response:
        assert (await response.json())["identities"] == ["local:carol"]


async def test_requests_without_a_login_store_nothing(admin: aiohttp.ClientSession, browser: OAuthSession) -> None:
    """Logins with wrong passwords, requests for authorization and wrong codes."""
    kinds = (
        *(f"{OAUTH}/oauthauthorizetokens", f"{OAUTH}/oauthaccesstokens", f"{OAUTH}/oauthclientauthorizations"),
        *("/apis/user.openshift.io/v1/users", "/apis/user.openshift.io/v1/identities"),
    )

    async def stored() -> list[str]:
        names = []
        for path in kinds:
            async with admin.get(path) as response:
                names += [item["metadata"]["name"] for item in (await response.json())["items"]]
        return names

    before = await stored()
    for number in range(3):
        await browser.challenge(f"nobody-{number}", "wrong", response_type="token")
        await browser.log_in("/login?then=/x", f"nobody-{number}", "wrong")
        await browser.authorize(client_id="openshift-browser-client", response_type="code", state=str(number))
        await browser.redeem("openshift-challenging-client", code=f"sha256~{number}")
        await browser.get("/oauth/token/request")
    assert await stored() == before
