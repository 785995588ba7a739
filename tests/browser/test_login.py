"""Logins in a real browser: the pages work without scripts, by keyboard and with assistive technology."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from aiohttp import web

from master.oauth.session import CSRF_COOKIE, SESSION_COOKIE
from tests.testbed.apiserver.oauth import (
    CLI,
    PASSWORDS,
    json_of,
    oauth_session,
    pkce,
    server_with_users,
    token_session,
)
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session
from tests.testbed.chromium import Browser, Page, browser_context, missing, running_chromium
from tests.testbed.namespaces import only_loopback

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

USER_SELF = "/apis/user.openshift.io/v1/users/~"
CLIENTS = "/apis/oauth.openshift.io/v1/oauthclients"
SECRET = "s3cret" * 8
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
PARTNERS = "<b>partners"
SCHEMES = ("light", "dark")

UNREADABLE = """
(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => [red, green, blue]
    .map((value) => value / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const background = (element) => {
    for (; element; element = element.parentElement) {
      const colour = channels(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const both = [channels(getComputedStyle(element).color), background(element)].map(luminance);
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (texts.currentNode.data.trim() && contrast < 4.5) found.push(`${contrast}: ${texts.currentNode.data}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push(`${document.documentElement.scrollWidth} pixels`);
  return found;
})()
"""
"""Texts of too little contrast, and the width of a page that has to be scrolled sideways (WCAG 2.2, 1.4.3, 1.4.10)."""


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    """A network that nothing else changes: Chromium drops its connections at each change."""
    with only_loopback():
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = server_with_users(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture(scope="module")
def server_with_partners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A master with two providers. A user of the second one has a name with markup."""
    root = tmp_path_factory.mktemp("partners")
    api_server = server_with_users(root)
    password = root.joinpath("htpasswd").read_text().splitlines()[0].partition(":")[2]
    root.joinpath("partners").write_text(f"{MARKUP.replace('/', '|')}:{password}\n")
    provider = {"apiVersion": "v1", "kind": "HTPasswdPasswordIdentityProvider", "file": str(root / "partners")}
    with root.joinpath("master.yaml").open("a") as config:
        config.write(f"- {json.dumps({'name': PARTNERS, 'login': True, 'provider': provider})}\n")
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture(scope="module")
def devtools(server: ApiServer, server_with_partners: ApiServer) -> Iterator[str]:
    with running_chromium(server, server_with_partners) as url:
        yield url


@pytest.fixture
async def browser(devtools: str) -> AsyncIterator[Browser]:
    async with browser_context(devtools) as context:
        yield context


@asynccontextmanager
async def client_on(host: str) -> AsyncIterator[str]:
    """Yield the URL of a client on a port of its own. Its pages frame the URL in their parameter `frame`."""

    async def respond(request: web.Request) -> web.Response:
        frame = f'<iframe src="{request.query["frame"]}"></iframe>' if "frame" in request.query else ""
        text = f"<!DOCTYPE html><link rel=icon href=data:,><title>Client</title><h1>At the client</h1>{frame}"
        return web.Response(text=text, content_type="text/html")

    application = web.Application()
    application.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, host.strip("[]"), 0).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def client_url() -> AsyncIterator[str]:
    async with client_on("127.0.0.2") as url:
        yield url


@pytest.fixture
async def authorize_url(server: ApiServer, client_url: str, tmp_path: Path) -> AsyncIterator[str]:
    """Where a client asks for two scopes. Users have to agree."""
    name, redirect_uri = f"app-{urlsplit(client_url).port}", f"{client_url}/back"
    client = {"metadata": {"name": name}, "grantMethod": "prompt", "secret": SECRET, "redirectURIs": [redirect_uri]}
    async with user_session(server, tmp_path, "system:admin", "system:masters") as admin:
        async with admin.post(CLIENTS, json=client) as response:
            assert response.status == 201
        query = {
            "client_id": name,
            "redirect_uri": redirect_uri,
            "response_type": "code",
            "scope": "user:info user:check-access",
            "state": MARKUP,
        }
        yield f"{server.url}/oauth/authorize?{urlencode(query)}"
        async with admin.delete(f"{CLIENTS}/{name}") as response:
            assert response.status == 200


async def log_in(page: Page, user: str = "alice", password: str = "") -> None:
    await page.fill("Username", user)
    await page.fill("Password", password or PASSWORDS[user])
    await page.follow("button", "Log in")


async def shown_token(page: Page) -> str:
    """Return the token that the page shows. Fails if it shows none."""
    assert await page.names("heading") == [
        "Your token",
        "Your API token is",
        "Log in with this token",
        "Use this token with kubectl and the CA certificate of the master",
        "Use this token directly against the API",
    ]
    return str(await page.evaluate("document.querySelector('code').textContent"))


async def user_of(server: ApiServer, token: str) -> dict[str, Any]:
    async with token_session(server, token) as session, session.get(USER_SELF) as response:
        assert response.status == 200
        user: dict[str, Any] = await response.json()
        return user


async def query_of(page: Page) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(await page.url()).query, keep_blank_values=True))


# --- a token ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scripts", [True, False])
async def test_token_of_the_page_works_at_the_api(server: ApiServer, browser: Browser, scripts: bool) -> None:
    page = await browser.open()
    await page.send("Emulation.setScriptExecutionDisabled", value=not scripts)
    await page.go(f"{server.url}/oauth/token/request")
    await log_in(page)
    assert await page.names("heading") == ["Display token"]
    await page.follow("button", "Display token")
    assert (await user_of(server, await shown_token(page)))["metadata"]["name"] == "alice"


async def test_keyboard_suffices(server: ApiServer, browser: Browser, authorize_url: str) -> None:
    """Each element has the focus in the order in which it is read, from the first key on."""
    page = await browser.open(authorize_url)
    assert await page.focused() == ("textbox", "Username")
    await page.type("bob")
    await page.press("Tab")
    assert await page.focused() == ("textbox", "Password")
    await page.type(PASSWORDS["bob"])
    async with page.loading():
        await page.press("Enter")
    stops = []
    for _ in range(4):
        await page.press("Tab")
        stops.append(await page.focused())
        if stops[-1][1].startswith("user:check-access"):
            await page.press("Space")
    assert [role for role, _ in stops] == ["checkbox", "checkbox", "button", "button"]
    assert [name for _, name in stops[2:]] == ["Allow selected permissions", "Deny"]
    assert not (await page.find("checkbox", "user:check-access")).is_checked
    assert (await page.find("checkbox", "user:info")).is_checked
    await page.press("Tab", shift=True)
    async with page.loading():
        await page.press("Enter")
    assert await page.names("heading") == ["At the client"]
    assert "code" in await query_of(page)


async def test_wrong_password_is_announced_and_the_next_login_leads_on(server: ApiServer, browser: Browser) -> None:
    page = await browser.open(f"{server.url}/oauth/token/request")
    then = (await query_of(page))["then"]
    assert await page.names("alert") == []
    await log_in(page, password="wrong")
    elements = await page.elements()
    (alert,) = [element for element in elements if element.role == "alert"]
    texts = [element.name for element in elements if element.role == "StaticText"]
    assert "Invalid login or password. Please try again." in texts
    assert alert.node
    username = await page.find("textbox", "Username")
    assert (username.description, username.properties["required"]) == (
        "Invalid login or password. Please try again.",
        True,
    )
    assert await page.focused() == ("textbox", "Username")
    assert (await query_of(page))["then"] == then
    assert "wrong" not in await page.url()
    await log_in(page)
    assert await page.names("button") == ["Display token"]


async def test_history_shows_no_token(server: ApiServer, browser: Browser) -> None:
    page = await browser.open(f"{server.url}/oauth/token/request")
    await log_in(page)
    await page.follow("button", "Display token")
    token = await shown_token(page)
    await page.go_in_history(-1)
    assert await page.names("button") == ["Display token"]
    assert token not in await page.source()
    await page.go_in_history(+1)
    assert token not in await page.source()
    again = await browser.open(f"{server.url}/oauth/token/request")
    await log_in(again)
    await again.follow("button", "Display token")
    token = await shown_token(again)
    await again.follow("link", "Request another token")
    assert await again.names("button") == ["Log in"]
    await again.go_in_history(-1)
    assert token not in await again.source()


async def test_used_code_shows_an_error(server: ApiServer, browser: Browser) -> None:
    page = await browser.open(f"{server.url}/oauth/token/request")
    await log_in(page)
    await page.follow("button", "Display token")
    await shown_token(page)
    await page.go_in_history(-1)
    await page.follow("button", "Display token")
    assert "The code has expired or was used." in await page.text()
    page.expect_problem("400 (Bad Request)")


async def test_two_tabs_log_in_at_once(server: ApiServer, browser: Browser) -> None:
    first, second = [await browser.open(f"{server.url}/oauth/token/request") for _ in range(2)]
    await log_in(first, "alice")
    await log_in(second, "bob")
    for page, user in ((first, "alice"), (second, "bob")):
        await page.follow("button", "Display token")
        assert (await user_of(server, await shown_token(page)))["metadata"]["name"] == user


async def test_cookies_are_for_the_server_only(server: ApiServer, browser: Browser, authorize_url: str) -> None:
    page = await browser.open(authorize_url)
    await log_in(page)
    assert await page.names("heading") == ["Authorize access"]
    cookies = await browser.cookies()
    assert sorted(cookies) == sorted((CSRF_COOKIE, SESSION_COOKIE))
    for cookie in cookies.values():
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"], cookie["path"]) == (True, True, "Lax", "/")
        assert cookie["session"]
    assert await page.evaluate("document.cookie") == ""
    page.expect_problem("DocumentCookie")
    await page.follow("button", "Allow")
    assert sorted(await browser.cookies()) == [CSRF_COOKIE]


async def test_logout_ends_the_session(server: ApiServer, browser: Browser, authorize_url: str) -> None:
    page = await browser.open(authorize_url)
    await log_in(page)
    await page.go(authorize_url)
    assert await page.names("heading") == ["Authorize access"]
    async with page.loading():
        await page.evaluate(
            "document.body.append(Object.assign(document.createElement('form'), {method: 'post', action: '/logout'}));"
            "document.body.lastChild.submit()"
        )
    page.expect_problem("NavigationEntryMarkedSkippable")  # The form was sent by a script.
    assert await page.names("heading") == ["Logged out"]
    assert SESSION_COOKIE not in await browser.cookies()
    await page.go(authorize_url)
    assert await page.names("heading") == ["Log in"]


# --- grants -----------------------------------------------------------------------------------------------------------


async def test_user_unticks_a_scope(server: ApiServer, browser: Browser, authorize_url: str) -> None:
    """The redirect after the form leads to another origin, which the Content-Security-Policy has to allow."""
    page = await browser.open(authorize_url)
    await log_in(page)
    await page.click("checkbox", "user:check-access")
    await page.follow("button", "Allow selected permissions")
    assert await page.names("heading") == ["At the client"]
    query = await query_of(page)
    assert query["state"] == MARKUP
    asked = dict(parse_qsl(urlsplit(authorize_url).query))
    async with oauth_session(server) as session:
        redeemed = await session.redeem(
            asked["client_id"], SECRET, code=query["code"], redirect_uri=asked["redirect_uri"]
        )
    assert json_of(redeemed)["scope"] == "user:info"
    await page.go(authorize_url)
    await log_in(page)
    assert [name.split()[0] for name in await page.names("checkbox")] == ["user:check-access"]
    assert "Existing access" in await page.names("heading")


@pytest.mark.parametrize("tick", [True, False])
async def test_user_denies(browser: Browser, authorize_url: str, tick: bool) -> None:
    """To allow nothing is to deny."""
    page = await browser.open(authorize_url)
    await log_in(page, "carol")
    if not tick:
        await page.click("checkbox", "user:info")
        await page.click("checkbox", "user:check-access")
    await page.follow("button", "Deny" if tick else "Allow selected permissions")
    query = await query_of(page)
    assert await page.names("heading") == ["At the client"]
    assert (query["error"], query["state"]) == ("access_denied", MARKUP)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_program_on_the_same_machine_gets_its_code(server: ApiServer, browser: Browser, host: str) -> None:
    """The redirects of `oc login --web`."""
    async with client_on(host) as url, oauth_session(server) as session:
        redirect_uri = f"{url}/callback"
        verifier, challenge = pkce()
        query = {
            "client_id": CLI,
            "redirect_uri": redirect_uri,
            "response_type": "code",
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        page = await browser.open(f"{server.url}/oauth/authorize?{urlencode(query)}")
        await log_in(page)
        assert await page.names("heading") == ["At the client"]
        code = (await query_of(page))["code"]
        assert (await session.redeem(CLI, code=code, redirect_uri=redirect_uri, code_verifier=verifier)).status == 200


# --- hostile pages and texts ------------------------------------------------------------------------------------------


async def test_markup_in_names_is_text(server_with_partners: ApiServer, browser: Browser, tmp_path: Path) -> None:
    """Names of provider, user and role, state and client."""
    redirect_uri = "http://127.0.0.2:1/back"
    client = {"metadata": {"name": "app"}, "grantMethod": "prompt", "secret": SECRET, "redirectURIs": [redirect_uri]}
    async with (
        user_session(server_with_partners, tmp_path, "system:admin", "system:masters") as admin,
        admin.post(CLIENTS, json=client) as response,
    ):
        assert response.status == 201
    scope = f"role:{MARKUP.replace(' ', '|')}:default"
    query = {
        "client_id": "app",
        "redirect_uri": f"{redirect_uri}/{quote(MARKUP)}",
        "response_type": "code",
        "scope": scope,
        "state": MARKUP,
    }
    page = await browser.open(f"{server_with_partners.url}/oauth/authorize?{urlencode(query)}")
    assert await page.names("link") == ["local", PARTNERS]
    await page.follow("link", PARTNERS)
    user = MARKUP.replace("/", "|")
    await log_in(page, user, PASSWORDS["alice"])
    text = await page.text()
    assert f"your account ({user})" in text
    assert scope in text
    for path, hostile, status in (
        ("/oauth/authorize", {**query, "client_id": MARKUP}, "400 (Bad Request)"),
        ("/oauth/token/display", {"code": MARKUP}, ""),
        (f"/login/{quote(PARTNERS)}", {"then": "/x", "reason": MARKUP}, ""),
        (f"/login/{quote(MARKUP)}", {"then": f"/{quote(MARKUP)}", "reason": MARKUP}, "404 (Not Found)"),
    ):
        await page.go(f"{server_with_partners.url}{path}?{urlencode(hostile)}")
        assert await page.text()
        if status:
            page.expect_problem(status)


async def test_page_in_a_frame_stays_empty(server: ApiServer, browser: Browser, client_url: str) -> None:
    page = await browser.open(f"{client_url}/?{urlencode({'frame': f'{client_url}/inner'})}")
    assert await page.frame_headings() == ["At the client"]
    await page.go(f"{client_url}/?{urlencode({'frame': f'{server.url}/login?then=/'})}")
    assert await page.frame_headings() == []
    for _ in ("on the console", "as an issue"):
        page.expect_problem("frame-ancestors")


# --- several providers ------------------------------------------------------------------------------------------------


async def test_user_chooses_a_provider(server_with_partners: ApiServer, browser: Browser) -> None:
    page = await browser.open(f"{server_with_partners.url}/oauth/token/request")
    assert await page.names("heading") == ["Log in with"]
    assert await page.names("navigation") == ["Identity providers"]
    await page.press("Tab")
    await page.press("Tab")
    assert await page.focused() == ("link", PARTNERS)
    async with page.loading():
        await page.press("Enter")
    await log_in(page, "alice")
    assert await page.names("heading") == ["Log in"]
    await page.go_in_history(-2)
    await page.follow("link", "local")
    await log_in(page, "alice")
    await page.follow("button", "Display token")
    assert (await user_of(server_with_partners, await shown_token(page)))["identities"] == ["local:alice"]


# --- looks ------------------------------------------------------------------------------------------------------------


async def problems_of_looks(page: Page) -> list[str]:
    """Return what is hard to read, in both colour schemes."""
    found = []
    for scheme in SCHEMES:
        await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        found += [f"{scheme}: {problem}" for problem in await page.evaluate(UNREADABLE)]
    return found


async def test_pages_are_readable_in_both_schemes_and_on_narrow_screens(
    server: ApiServer, server_with_partners: ApiServer, browser: Browser, authorize_url: str
) -> None:
    page = await browser.open()
    await page.send("Emulation.setDeviceMetricsOverride", width=320, height=256, deviceScaleFactor=1, mobile=False)
    await page.go(f"{server_with_partners.url}/oauth/token/request")
    assert await problems_of_looks(page) == []
    await page.go(f"{server.url}/oauth/token/request")
    await log_in(page, password="wrong")
    assert await problems_of_looks(page) == []
    await log_in(page)
    assert await problems_of_looks(page) == []
    await page.follow("button", "Display token")
    assert await problems_of_looks(page) == []
    await page.go(authorize_url.replace("user%3Ainfo", "user%3Afull"))
    await log_in(page)
    assert await page.names("heading") == ["Authorize access"]
    assert await problems_of_looks(page) == []
    await page.go(f"{server.url}/oauth/nothing")
    page.expect_problem("404 (Not Found)")
    assert await problems_of_looks(page) == []
    await page.evaluate("document.body.style.width = '400px', document.querySelector('h1').style.color = '#888'")
    assert [problem[:12] for problem in await problems_of_looks(page)] == [
        "light: 3.544",
        "light: 400 p",
        "dark: 4.3630",
        "dark: 400 pi",
    ]
