"""Users log in: the requests of oc and of a browser, tokens, scopes, groups, and what is rejected on the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest

from tests.testbed.apiserver.oauth import (
    BROWSER,
    CHALLENGING,
    CLI,
    PASSWORDS,
    Answer,
    OAuthSession,
    basic,
    json_of,
    oauth_session,
    pkce,
    server_with_users,
    token_session,
)
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session

USERS = "/apis/user.openshift.io/v1/users"
IDENTITIES = "/apis/user.openshift.io/v1/identities"
MAPPINGS = "/apis/user.openshift.io/v1/useridentitymappings"
GROUPS = "/apis/user.openshift.io/v1/groups"
OAUTH = "/apis/oauth.openshift.io/v1"
TOKENS = f"{OAUTH}/oauthaccesstokens"


async def get(server: ApiServer, token: str, path: str) -> tuple[int, dict[str, Any]]:
    async with token_session(server, token) as session, session.get(path) as response:
        return response.status, await response.json()


# --- oc ---------------------------------------------------------------------------------------------------------------


async def test_oc_login_gets_a_token_by_code_and_pkce(server: ApiServer, browser: OAuthSession) -> None:
    """The requests of `oc login -u`, `oc whoami` and `oc logout`, in this order."""
    assert not (await browser.send("HEAD", "/")).headers["Content-Type"].startswith("text/html")
    discovery = json_of(await browser.get("/.well-known/oauth-authorization-server", headers={"X-CSRF-Token": "1"}))
    assert discovery["issuer"] == browser.url
    assert "S256" in discovery["code_challenge_methods_supported"]
    verifier, challenge = pkce()
    parameters = {
        "client_id": CHALLENGING,
        "redirect_uri": f"{browser.url}/oauth/token/implicit",
        "response_type": "code",
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    target = f"{discovery['authorization_endpoint']}?{urlencode(parameters)}"
    demanded = await browser.get(target, headers={"X-CSRF-Token": "1"})
    assert (demanded.status, demanded.headers["WWW-Authenticate"]) == (401, 'Basic realm="openshift"')
    assert demanded.text == ""
    credentials = basic("alice", PASSWORDS["alice"])
    headers = {"X-CSRF-Token": "1", "Authorization": credentials}
    answer = await browser.get(target, headers=headers)
    assert answer.status == 302
    assert answer.location.startswith(f"{browser.url}/oauth/token/implicit?code=sha256~")
    assert answer.query["state"] == ""
    redeemed = await browser.redeem(CHALLENGING, code=answer.query["code"], code_verifier=verifier)
    issued = json_of(redeemed)
    assert (issued["token_type"], issued["expires_in"], issued["scope"]) == ("Bearer", 86400, "user:full")
    token = issued["access_token"]
    status, user = await get(server, token, f"{USERS}/~")
    assert (status, user["metadata"]["name"]) == (200, "alice")
    assert user["identities"] == ["local:alice"]
    assert {"system:authenticated", "system:authenticated:oauth"} <= set(user["groups"])
    status, own = await get(server, token, f"{OAUTH}/useroauthaccesstokens")
    (name,) = [item["metadata"]["name"] for item in own["items"]]
    assert name not in token
    async with token_session(server, token) as session, session.delete(f"{TOKENS}/{name}") as response:
        assert response.status == 200
    assert (await get(server, token, f"{USERS}/~"))[0] == 401


async def test_wrong_password_gets_the_same_challenge_again(browser: OAuthSession) -> None:
    for user, password in (("alice", "wrong"), ("nobody", "wrong"), ("alice", "")):
        answer = await browser.challenge(user, password, code_challenge=pkce()[1], code_challenge_method="S256")
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="openshift"')


async def test_client_without_a_csrf_header_is_not_asked_for_a_password(browser: OAuthSession) -> None:
    """A page of another site can send neither the header nor, therefore, the password that a browser remembers."""
    parameters = {"client_id": CHALLENGING, "response_type": "token"}
    credentials = {"Authorization": basic("alice", PASSWORDS["alice"])}
    answer = await browser.get(f"/oauth/authorize?{urlencode(parameters)}", headers=credentials)
    assert answer.status == 401
    assert "WWW-Authenticate" not in answer.headers
    assert "X-CSRF-Token" in answer.headers["Warning"]


async def test_implicit_flow_returns_the_token_in_the_fragment(server: ApiServer, browser: OAuthSession) -> None:
    answer = await browser.challenge("bob", PASSWORDS["bob"], response_type="token", state="s")
    assert "?" not in answer.location
    assert (answer.fragment["state"], answer.fragment["scope"]) == ("s", "user:full")
    assert (await get(server, answer.fragment["access_token"], f"{USERS}/~"))[1]["metadata"]["name"] == "bob"


# --- codes ------------------------------------------------------------------------------------------------------------


async def code_of(browser: OAuthSession, challenge: str) -> str:
    answer = await browser.challenge(
        "alice", PASSWORDS["alice"], code_challenge=challenge, code_challenge_method="S256"
    )
    return answer.query["code"]


async def test_of_parallel_redemptions_of_a_code_one_succeeds(browser: OAuthSession) -> None:
    verifier, challenge = pkce()
    code = await code_of(browser, challenge)
    answers = await asyncio.gather(*(browser.redeem(CHALLENGING, code=code, code_verifier=verifier) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200, *[400] * 7]


@pytest.mark.parametrize(
    ("client", "form", "error"),
    [
        (CHALLENGING, {"code_verifier": "x" * 43}, "invalid_grant"),
        (CHALLENGING, {"code_verifier": "short"}, "invalid_request"),
        (CHALLENGING, {}, "invalid_request"),
        (CHALLENGING, {"redirect_uri": "https://127.0.0.1/other"}, "invalid_grant"),
    ],
)
async def test_failed_redemption_ends_the_code(
    browser: OAuthSession, client: str, form: dict[str, str], error: str
) -> None:
    verifier, challenge = pkce()
    code = await code_of(browser, challenge)
    answer = await browser.redeem(client, **{"code": code, **form})
    assert (answer.status, json_of(answer)["error"]) == (400, error)
    again = await browser.redeem(CHALLENGING, code=code, code_verifier=verifier)
    assert (again.status, json_of(again)["error"]) == (400, "unauthorized_client")


async def test_other_client_can_neither_redeem_nor_end_a_code(browser: OAuthSession) -> None:
    verifier, challenge = pkce()
    code = await code_of(browser, challenge)
    answer = await browser.redeem(CLI, code=code, code_verifier=verifier)
    assert (answer.status, json_of(answer)["error"]) == (400, "invalid_grant")
    wrong_secret = await browser.redeem(BROWSER, "guess", code=code, code_verifier=verifier)
    assert json_of(wrong_secret)["error"] == "unauthorized_client"
    assert (await browser.redeem(CHALLENGING, code=code, code_verifier=verifier)).status == 200


async def test_public_client_needs_a_code_challenge(browser: OAuthSession) -> None:
    answer = await browser.challenge("alice", PASSWORDS["alice"])
    assert answer.query["error"] == "invalid_request"


@pytest.mark.parametrize("grant_type", ["password", "client_credentials", "refresh_token", "urn:x", ""])
async def test_other_grant_types_are_rejected(browser: OAuthSession, grant_type: str) -> None:
    form = {"grant_type": grant_type, "username": "alice", "password": PASSWORDS["alice"]}
    answer = await browser.redeem(CHALLENGING, **form)
    assert answer.status == 400
    assert "access_token" not in answer.text


# --- a browser --------------------------------------------------------------------------------------------------------


async def test_browser_logs_in_and_sees_its_token(server: ApiServer, browser: OAuthSession) -> None:
    requested = await browser.get("/oauth/token/request")
    demanded = await browser.get(requested.location)
    assert demanded.location.startswith("/login?then=")
    wrong = await browser.log_in(demanded.location, "alice", "wrong")
    assert (wrong.status, wrong.query["reason"]) == (302, "access_denied")
    page = await browser.get(wrong.location)
    assert 'role="alert"' in page.text
    logged_in = await browser.log_in(wrong.location.replace("reason=access_denied&", ""), "alice", PASSWORDS["alice"])
    cookie = logged_in.headers["Set-Cookie"]
    assert all(flag in cookie for flag in ("HttpOnly", "Secure", "SameSite=Lax", "Path=/"))
    authorized = await browser.get(logged_in.location)
    assert authorized.location.startswith(f"{browser.url}/oauth/token/display?code=")
    display = await browser.get(authorized.location)
    assert "sha256~" in display.hidden("code")
    assert "Your API token" not in display.text
    shown = await browser.post("/oauth/token/display", {"code": display.hidden("code"), "csrf": display.hidden("csrf")})
    token = shown.text.partition("<code>")[2].partition("</code>")[0]
    assert (await get(server, token, f"{USERS}/~"))[1]["metadata"]["name"] == "alice"
    once = await browser.post("/oauth/token/display", {"code": display.hidden("code"), "csrf": display.hidden("csrf")})
    assert once.status == 400
    again = await browser.get(requested.location)
    assert again.location.startswith("/login?then=")


async def test_session_serves_one_authorization(browser: OAuthSession) -> None:
    requested = (await browser.get("/oauth/token/request")).location
    await browser.log_in((await browser.get(requested)).location, "bob", PASSWORDS["bob"])
    assert "code=" in (await browser.get(requested)).location
    assert (await browser.get(requested)).location.startswith("/login")


async def test_login_in_one_tab_leaves_the_form_of_another_valid(browser: OAuthSession) -> None:
    login_path = (await browser.get((await browser.get("/oauth/token/request")).location)).location
    first, second = await browser.get(login_path), await browser.get(login_path)
    for page, user in ((first, "alice"), (second, "bob")):
        form = {"then": page.hidden("then"), "csrf": page.hidden("csrf"), "username": user, "password": PASSWORDS[user]}
        assert (await browser.post(login_path, form)).location == page.hidden("then")


async def test_form_of_another_site_is_rejected(browser: OAuthSession) -> None:
    form = {"then": "/oauth/authorize", "username": "alice", "password": PASSWORDS["alice"]}
    for csrf in ("", "x" * 43):
        answer = await browser.post("/login", {**form, "csrf": csrf})
        assert answer.query["reason"] == "token_expired"
        assert "ssn" not in answer.headers.get("Set-Cookie", "")
    assert (await browser.post("/oauth/token/display", {"code": "sha256~x", "csrf": ""})).status == 400


@pytest.mark.parametrize(
    "then",
    ["//evil.example/", "/\\evil.example/", "https://evil.example/", "/%0d%0aX: y\r\nX: z", "evil", "", "/\tx", "/ü"],
)
async def test_login_leads_to_this_server_only(browser: OAuthSession, then: str) -> None:
    answer = await browser.get(f"/login?{urlencode({'then': then})}")
    assert answer.location in ("/", "") or answer.status == 400
    assert (await browser.post("/logout", {"then": then})).location == ""
    assert (await browser.post("/logout", {"then": "/console"})).location == "/console"


async def test_every_response_has_the_security_headers(browser: OAuthSession) -> None:
    for method, path in (
        ("GET", "/login?then=/x"),
        ("GET", "/oauth/token/request"),
        ("GET", "/oauth/authorize"),
        ("GET", "/oauth/nothing"),
        ("PUT", "/oauth/authorize"),
        ("GET", "/oauth/style.css"),
        ("GET", "/.well-known/oauth-authorization-server"),
    ):
        headers = (await browser.send(method, path)).headers
        assert headers["X-Frame-Options"] == "DENY", path
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "script" not in headers["Content-Security-Policy"]


# --- clients ----------------------------------------------------------------------------------------------------------


async def make_client(admin: aiohttp.ClientSession, name: str, **fields: Any) -> None:
    document = {"metadata": {"name": name}, "grantMethod": "prompt", **fields}
    async with admin.post(f"{OAUTH}/oauthclients", json=document) as response:
        assert response.status == 201, await response.text()


async def test_user_grants_some_of_the_requested_scopes(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    await make_client(admin, "app", secret="s3cret" * 8, redirectURIs=["https://app.example/back"])
    parameters = {
        "client_id": "app",
        "redirect_uri": "https://app.example/back",
        "response_type": "code",
        "state": "<script>",
        "scope": "user:info user:check-access",
    }
    demanded = await browser.authorize(**parameters)
    page = await browser.get(demanded.location)
    assert "form-action 'self' https://app.example" in page.headers["Content-Security-Policy"]
    logged_in = await browser.log_in(demanded.location, "carol", PASSWORDS["carol"])
    asked = await browser.get(logged_in.location)
    assert asked.location.startswith("/oauth/authorize/approve?")
    grant_page = await browser.get(asked.location)
    assert "<strong>app</strong>" in grant_page.text
    form = {name: grant_page.hidden(name) for name in ("then", "csrf", "client_id", "user_name", "redirect_uri")}
    denied = await browser.post(asked.location, {**form, "deny": "Deny", "scope": "user:info"})
    at_client = await browser.get(denied.location)
    assert at_client.location.startswith("https://app.example/back?")
    assert (at_client.query["error"], at_client.query["state"]) == ("access_denied", "<script>")
    nothing = await browser.post(asked.location, {**form, "approve": "yes"})
    assert (await browser.get(nothing.location)).query["error"] == "access_denied"
    forged = await browser.post(asked.location, {**form, "user_name": "alice", "approve": "yes", "scope": "user:info"})
    assert forged.status == 400
    approved = await browser.post(asked.location, {**form, "approve": "yes", "scope": "user:info"})
    back = await browser.get(approved.location)
    assert back.location.startswith("https://app.example/back?code=")
    redeemed = await browser.redeem(
        "app", "s3cret" * 8, code=back.query["code"], redirect_uri="https://app.example/back"
    )
    issued = json_of(redeemed)
    assert issued["scope"] == "user:info"
    token = issued["access_token"]
    assert (await get(server, token, f"{USERS}/~"))[0] == 200
    status, forbidden = await get(server, token, "/api/v1/namespaces")
    assert status == 403
    assert forbidden["message"].endswith("scopes [user:info] prevent this action")


@pytest.mark.parametrize(
    ("redirect_uri", "source"),
    [
        ("http://127.0.0.1:34567/callback", "http://127.0.0.1:34567"),
        ("http://[::1]:34567/callback", "http:"),
        ("com.example.app:/back", "com.example.app:"),
    ],
)
async def test_login_form_may_redirect_to_the_client_only(
    admin: aiohttp.ClientSession, browser: OAuthSession, redirect_uri: str, source: str
) -> None:
    """A Content-Security-Policy can name neither an IPv6 address nor a host in a scheme of one program."""
    async with admin.get(f"{OAUTH}/oauthclients/program") as response:
        if response.status == 404:
            registered = ["http://127.0.0.1/callback", "http://[::1]/callback", "com.example.app:/back"]
            await make_client(admin, "program", redirectURIs=registered, secret="x" * 43)
    demanded = await browser.authorize(client_id="program", response_type="code", redirect_uri=redirect_uri)
    policy = (await browser.get(demanded.location)).headers["Content-Security-Policy"]
    assert policy.partition("form-action ")[2] == f"'self' {source}".strip()


async def test_grant_after_the_session_leads_to_the_login_and_back(
    admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    await make_client(admin, "slow", redirectURIs=["https://app.example/back"], secret="x" * 43)
    demanded = await browser.authorize(client_id="slow", response_type="code", scope="user:info")
    asked = await browser.get((await browser.log_in(demanded.location, "carol", PASSWORDS["carol"])).location)
    grant_page = await browser.get(asked.location)
    form = {name: grant_page.hidden(name) for name in ("then", "csrf", "client_id", "user_name", "redirect_uri")}
    await browser.post("/logout", {})
    for answer in (
        await browser.get(asked.location),
        await browser.post(asked.location, {**form, "approve": "yes", "scope": "user:info"}),
    ):
        assert answer.location == form["then"]
        assert (await browser.get(answer.location)).location.startswith("/login?then=")
    elsewhere = {**form, "then": "/logout"}
    assert (await browser.post(asked.location, {**elsewhere, "approve": "yes", "scope": "user:info"})).status == 400


@pytest.mark.parametrize(
    "redirect_uri",
    [
        "https://app.example/backdoor",
        "https://app.example.evil/back",
        "https://app.example@evil.example/back",
        "https://evil.example/back",
        "http://app.example/back",
        "https://app.example/back/../../x",
        "https://app.example/back/%2e%2e/x",
        "https://app.example/back#x",
        "https://APP.example/back",
        "https://app.example./back",
        "https://app.example:444/back",
        "https:\\\\app.example\\back",
        "//app.example/back",
        "javascript:alert(1)",
        "https://app.example/back\r\nX: y",
    ],
)
async def test_redirect_uri_of_another_place_is_rejected(
    admin: aiohttp.ClientSession, browser: OAuthSession, redirect_uri: str
) -> None:
    """A path below the registered one is accepted."""
    async with admin.get(f"{OAUTH}/oauthclients/strict") as response:
        if response.status == 404:
            await make_client(admin, "strict", redirectURIs=["https://app.example/back"], secret="x" * 43)
    answer = await browser.authorize(client_id="strict", response_type="code", redirect_uri=redirect_uri)
    assert (answer.status, answer.location) == (400, "")
    assert json_of(answer)["error"] == "invalid_request"
    below = await browser.authorize(
        client_id="strict", response_type="code", redirect_uri="https://app.example/back/deep?x=1"
    )
    assert below.status == 302


async def test_loopback_client_may_use_any_port(browser: OAuthSession) -> None:
    _, challenge = pkce()
    parameters = {"client_id": CLI, "response_type": "code", "code_challenge": challenge}
    for redirect_uri, status in (
        ("http://127.0.0.1:34567/callback", 302),
        ("http://[::1]:1/callback", 302),
        ("http://localhost:34567/callback", 400),
        ("http://127.0.0.1:34567/other", 400),
        ("https://127.0.0.1:34567/callback", 400),
    ):
        answer = await browser.authorize(**parameters, redirect_uri=redirect_uri)
        assert answer.status == status, redirect_uri


async def test_service_account_is_a_client_for_its_own_namespace(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    annotations = {"serviceaccounts.openshift.io/oauth-redirecturi.x": "https://proxy.example/oauth/callback"}
    account = {"metadata": {"name": "proxy", "annotations": annotations}}
    async with admin.post("/api/v1/namespaces/default/serviceaccounts", json=account) as response:
        assert response.status == 201
    name = "system:serviceaccount:default:proxy"
    parameters = {
        "client_id": name,
        "response_type": "code",
        "redirect_uri": "https://proxy.example/oauth/callback",
        "scope": "role:view:default",
    }
    full = await browser.authorize(**{**parameters, "scope": "user:full"})
    assert full.query["error"] == "access_denied"
    elsewhere = await browser.authorize(**{**parameters, "scope": "role:view:kube-system"})
    assert elsewhere.query["error"] == "access_denied"
    logged_in = await browser.log_in((await browser.authorize(**parameters)).location, "alice", PASSWORDS["alice"])
    asked = (await browser.get(logged_in.location)).location
    page = await browser.get(asked)
    form = {field: page.hidden(field) for field in ("then", "csrf", "client_id", "user_name", "redirect_uri")}
    approved = await browser.post(asked, {**form, "approve": "yes", "scope": "role:view:default"})
    code = (await browser.get(approved.location)).query["code"]
    async with admin.post("/api/v1/namespaces/default/serviceaccounts/proxy/token", json={"spec": {}}) as response:
        secret = (await response.json())["status"]["token"]
    refused = await browser.redeem(name, "wrong", code=code, redirect_uri=parameters["redirect_uri"])
    assert json_of(refused)["error"] == "unauthorized_client"
    redeemed = await browser.redeem(name, secret, code=code, redirect_uri=parameters["redirect_uri"])
    assert json_of(redeemed)["scope"] == "role:view:default"


async def authorization_after_login(browser: OAuthSession, parameters: dict[str, str]) -> Answer:
    """Return the response to a request for authorization by a user who has just logged in."""
    logged_in = await browser.log_in((await browser.authorize(**parameters)).location, "alice", PASSWORDS["alice"])
    return await browser.get(logged_in.location)


async def forge_grant(browser: OAuthSession, parameters: dict[str, str]) -> Answer:
    """Send the form of a grant page that was not shown."""
    form = {
        "then": f"/oauth/authorize?{urlencode(parameters)}",
        "csrf": browser.cookies()["__Host-csrf"],
        "client_id": parameters["client_id"],
        "user_name": "alice",
        "redirect_uri": parameters["redirect_uri"],
        "approve": "yes",
        "scope": parameters["scope"],
    }
    return await browser.post("/oauth/authorize/approve", form)


@pytest.mark.parametrize("method", ["deny", "prompt"])
async def test_client_whose_grants_are_denied_gets_what_was_granted_before(
    admin: aiohttp.ClientSession, browser: OAuthSession, method: str
) -> None:
    name, uri = f"app-{method}", "https://app.example/back"
    client = {"metadata": {"name": name}, "grantMethod": method, "secret": "s", "redirectURIs": [uri]}
    async with admin.post(f"{OAUTH}/oauthclients", json=client) as response:
        assert response.status == 201, await response.text()
        uid = (await response.json())["metadata"]["uid"]
    parameters = {"client_id": name, "response_type": "code", "redirect_uri": uri, "scope": "user:info"}
    answer = await authorization_after_login(browser, parameters)
    if method == "prompt":
        assert answer.location.startswith("/oauth/authorize/approve?")
    else:
        assert answer.location.startswith(uri)
        assert answer.query["error"] == "access_denied"
        assert (await browser.get(f"/oauth/authorize/approve?{urlencode(parameters)}")).status == 403
        assert (await forge_grant(browser, parameters)).status == 403
        assert (await browser.authorize(**parameters)).query["error"] == "access_denied"
    async with admin.get(f"{USERS}/alice") as response:
        user_uid = (await response.json())["metadata"]["uid"]
    grant = {
        "metadata": {"annotations": {"podlane.io/oauth-client-uid": uid}},
        "clientName": name,
        "userName": "alice",
        "userUID": user_uid,
        "scopes": ["user:info"],
    }
    async with admin.post(f"{OAUTH}/oauthclientauthorizations", json=grant) as response:
        assert response.status == 201, await response.text()
    assert "code" in (await browser.authorize(**parameters)).query


@pytest.mark.parametrize("method", ["deny", "prompt"])
async def test_grants_to_service_accounts_can_be_denied(tmp_path: Path, method: str) -> None:
    server = server_with_users(tmp_path)
    with tmp_path.joinpath("master.yaml").open("a") as config:
        config.write(f"serviceAccountGrantMethod: {method}\n")
    server.start()
    uri = "https://proxy.example/back"
    account = {"metadata": {"name": "proxy", "annotations": {"serviceaccounts.openshift.io/oauth-redirecturi.x": uri}}}
    parameters = {
        "client_id": "system:serviceaccount:default:proxy",
        "response_type": "code",
        "redirect_uri": uri,
        "scope": "user:info",
    }
    async with (
        user_session(server, tmp_path, "system:admin", "system:masters") as admin,
        oauth_session(server) as browser,
    ):
        async with admin.post("/api/v1/namespaces/default/serviceaccounts", json=account) as response:
            assert response.status == 201
        answer = await authorization_after_login(browser, parameters)
        forged = await forge_grant(browser, parameters)
        if method == "prompt":
            assert answer.location.startswith("/oauth/authorize/approve?")
            assert "code" in (await browser.get(forged.location)).query
        else:
            assert (answer.location.partition("?")[0], answer.query["error"]) == (uri, "access_denied")
            assert forged.status == 403
            assert (await browser.authorize(**parameters)).query["error"] == "access_denied"
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"client_id": "nobody", "response_type": "code"}, "unauthorized_client"),
        ({"response_type": "code"}, "unauthorized_client"),
        ({"client_id": "system:serviceaccount:default:default", "response_type": "code"}, "unauthorized_client"),
        ({"client_id": "x" * 5000}, "invalid_request"),
        ({"client_id": "a\0b"}, "invalid_request"),
    ],
)
async def test_request_without_a_client_is_redirected_nowhere(
    browser: OAuthSession, parameters: dict[str, str], error: str
) -> None:
    answer = await browser.authorize(**parameters)
    assert (answer.status, answer.location, json_of(answer)["error"]) == (400, "", error)


async def test_doubled_parameters_are_rejected(browser: OAuthSession) -> None:
    query = urlencode([("client_id", CHALLENGING), ("client_id", "evil"), ("response_type", "code")])
    answer = await browser.get(f"/oauth/authorize?{query}")
    assert (answer.status, json_of(answer)["error"]) == (400, "invalid_request")


# --- users, identities, groups ----------------------------------------------------------------------------------------


async def test_token_of_a_user_who_was_created_again_is_invalid(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    token = await browser.token("bob")
    assert (await get(server, token, f"{USERS}/~"))[0] == 200
    async with admin.delete(f"{USERS}/bob") as response:
        assert response.status == 200
    assert (await get(server, token, f"{USERS}/~"))[0] == 401
    failed = await browser.challenge("bob", PASSWORDS["bob"], response_type="token")
    assert failed.status == 500
    assert "An authentication error occurred." in failed.text
    async with admin.delete(f"{IDENTITIES}/local:bob") as response:
        assert response.status == 200
    assert (await get(server, await browser.token("bob"), f"{USERS}/~"))[0] == 200
    assert (await get(server, token, f"{USERS}/~"))[0] == 401


async def test_groups_count_at_the_next_request(
    server: ApiServer, admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    token = await browser.token("carol")
    binding = {
        "metadata": {"name": "team"},
        "subjects": [{"kind": "Group", "name": "team", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
    }
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    async with admin.post(bindings, json=binding) as response:
        assert response.status == 201
    assert (await get(server, token, "/api/v1/nodes"))[0] == 403
    async with admin.post(GROUPS, json={"metadata": {"name": "team"}, "users": ["carol"]}) as response:
        assert response.status == 201
    assert (await get(server, token, "/api/v1/nodes"))[0] == 200
    assert "team" in (await get(server, token, f"{USERS}/~"))[1]["groups"]
    async with admin.delete(f"{GROUPS}/team") as response:
        assert response.status == 200
    assert (await get(server, token, "/api/v1/nodes"))[0] == 403
    async with admin.delete(f"{bindings}/team") as response:
        assert response.status == 200


async def test_mapping_moves_an_identity_to_another_user(
    admin: aiohttp.ClientSession, browser: OAuthSession, server: ApiServer
) -> None:
    await browser.token("carol")
    async with admin.get(f"{MAPPINGS}/local:carol") as response:
        mapping = await response.json()
    assert mapping["user"]["name"] == "carol"
    async with admin.post(USERS, json={"metadata": {"name": "caroline"}}) as response:
        assert response.status == 201
    moved = {"metadata": {"name": "local:carol"}, "identity": {"name": "local:carol"}, "user": {"name": "caroline"}}
    async with admin.post(MAPPINGS, json=moved) as response:
        assert response.status == 409
    async with admin.put(f"{MAPPINGS}/local:carol", json=moved) as response:
        assert response.status == 200, await response.text()
    assert (await get(server, await browser.token("carol"), f"{USERS}/~"))[1]["metadata"]["name"] == "caroline"
    async with admin.get(f"{USERS}/carol") as response:
        assert "identities" not in await response.json()
    async with admin.delete(f"{MAPPINGS}/local:carol") as response:
        assert response.status == 200
    async with admin.get(f"{MAPPINGS}/local:carol") as response:
        assert response.status == 404
    missing = {**moved, "user": {"name": "nobody"}}
    async with admin.post(MAPPINGS, json=missing) as response:
        text = await response.text()
        assert (response.status, "referenced user does not exist" in text) == (422, True)
    async with admin.post(MAPPINGS, json={**moved, "user": {"name": "carol"}}) as response:
        assert response.status == 201


async def test_users_see_only_their_own_tokens(server: ApiServer, browser: OAuthSession) -> None:
    alice, bob = await browser.token("alice"), await browser.token("bob")
    path = f"{OAUTH}/useroauthaccesstokens"
    names = {
        token: {item["metadata"]["name"] for item in (await get(server, token, path))[1]["items"]}
        for token in (alice, bob)
    }
    assert names[alice]
    assert names[bob]
    assert not names[alice] & names[bob]
    foreign = min(names[bob])
    assert (await get(server, alice, f"{path}/{foreign}"))[0] == 404
    assert (await get(server, bob, f"{path}/{foreign}"))[0] == 200
    async with token_session(server, alice) as session, session.delete(f"{path}/{foreign}") as response:
        assert response.status == 404
    assert (await get(server, alice, TOKENS))[0] == 403


async def test_tokens_are_nowhere_in_clear(server: ApiServer, browser: OAuthSession) -> None:
    token = await browser.token("alice")
    random = token.removeprefix("sha256~").encode()
    for path in server.root.rglob("*"):
        if path.is_file():
            assert random not in path.read_bytes(), path


async def test_anonymous_user_has_no_current_user(browser: OAuthSession) -> None:
    assert (await browser.get(f"{USERS}/~")).status == 403


async def test_token_review_names_user_groups_and_scopes(admin: aiohttp.ClientSession, browser: OAuthSession) -> None:
    token = await browser.token("alice", scope="user:info")
    review = {"spec": {"token": token}}
    async with admin.post("/apis/authentication.k8s.io/v1/tokenreviews", json=review) as response:
        status = (await response.json())["status"]
    assert status["authenticated"]
    assert status["user"]["username"] == "alice"
    assert status["user"]["extra"] == {"scopes.authorization.openshift.io": ["user:info"]}


async def test_scopes_limit_what_others_review(admin: aiohttp.ClientSession, browser: OAuthSession) -> None:
    """Servers of nodes review the token of a user, and then the access of that user."""
    token = await browser.token("alice", scope="user:info")
    async with admin.post("/apis/authentication.k8s.io/v1/tokenreviews", json={"spec": {"token": token}}) as response:
        user = (await response.json())["status"]["user"]
    reviewed = {"user": user["username"], "groups": [*user["groups"], "system:masters"]}
    for extra, allowed in ((user["extra"], False), ({}, True), ({"scopes.authorization.openshift.io": "x"}, None)):
        attributes = {"resource": "nodes", "subresource": "proxy", "verb": "get", "name": "n1"}
        document = {"spec": {**reviewed, "extra": extra, "resourceAttributes": attributes}}
        async with admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=document) as response:
            answer = await response.json()
        if allowed is None:
            assert (response.status, answer["details"]["causes"][0]["field"]) == (422, "spec.extra")
        else:
            assert answer["status"]["allowed"] is allowed


async def test_impersonated_user_has_only_the_requested_scopes(admin: aiohttp.ClientSession) -> None:
    scopes = "Impersonate-Extra-scopes.authorization.openshift.io"
    everything = {"Impersonate-User": "alice", "Impersonate-Group": "system:masters"}
    for requested, path, status in (
        ({}, "/api/v1/nodes", 200),
        ({scopes: "user:info"}, "/api/v1/nodes", 403),
        ({scopes: "user:info"}, f"{USERS}/~", 200),
        ({scopes: "user:full"}, "/api/v1/nodes", 200),
    ):
        async with admin.get(path, headers={**everything, **requested}) as response:
            assert response.status == status, (requested, path)
            if status == 403:
                assert (await response.json())["message"].endswith("scopes [user:info] prevent this action")


async def test_client_has_several_secrets_while_they_are_changed(
    admin: aiohttp.ClientSession, browser: OAuthSession
) -> None:
    old, new, target = "old" * 12, "new" * 12, "https://app.example/back"
    await make_client(admin, "rotating", secret=new, additionalSecrets=[old], redirectURIs=[target], grantMethod="auto")
    for secret, status in ((old, 200), (new, 200), ("older" * 12, 400), ("", 400)):
        parameters = {"client_id": "rotating", "redirect_uri": target, "response_type": "code"}
        demanded = await browser.authorize(**parameters)
        logged_in = await browser.log_in(demanded.location, "carol", PASSWORDS["carol"])
        code = (await browser.get(logged_in.location)).query["code"]
        redeemed = await browser.redeem("rotating", secret, code=code, redirect_uri=target)
        assert redeemed.status in {status, 401 if status == 400 else status}, redeemed.text
        assert ("access_token" in redeemed.text) == (status == 200)


async def test_json_is_no_form(browser: OAuthSession) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await browser.send("POST", "/oauth/token", data=json.dumps({"grant_type": "x"}), headers=headers)
    assert answer.status == 400


# --- a proxy that authenticates people --------------------------------------------------------------------------------


async def test_proxy_with_its_certificate_names_the_user(server: ApiServer, browser: OAuthSession) -> None:
    target = f"/oauth/authorize?{urlencode({'client_id': CHALLENGING, 'response_type': 'token'})}"
    headers = {"X-Remote-User": "dora", "X-CSRF-Token": "1"}
    async with oauth_session(server, server.root / "proxy.pem") as proxy:
        token = (await proxy.get(target, headers=headers)).fragment["access_token"]
    assert (await get(server, token, f"{USERS}/~"))[1]["identities"] == ["proxy:dora"]
    assert (await browser.get(target, headers=headers)).status == 401
    async with oauth_session(server, server.root / "impostor.pem") as impostor:
        answer = await impostor.get(target, headers=headers)
    assert (answer.status, answer.location) == (500, "")


async def test_certificate_of_a_proxys_authority_is_no_user(server: ApiServer, admin: aiohttp.ClientSession) -> None:
    """The same subject in a certificate of the cluster's authority is the administrator."""
    async with oauth_session(server, server.root / "impostor.pem") as impostor:
        assert (await impostor.get("/api/v1/nodes")).status == 403
        assert "system:anonymous" in (await impostor.get("/api/v1/nodes")).text
    async with admin.get("/api/v1/nodes") as response:
        assert response.status == 200
