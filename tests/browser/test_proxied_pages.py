"""Pages behind the proxy in a real browser: they have the URL of the master, but not its origin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from lab.process import run
from tests.testbed.apiserver.oauth import oauth_session, server_with_users, token_session
from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.users import user_session
from tests.testbed.chromium import Browser, Page, browser_context, missing, running_chromium
from tests.testbed.namespaces import only_loopback

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

NODE_ADDRESS = "198.51.100.1"

PROBE = """
(async () => {
  const attempt = async (action) => { try { return String(await action()); } catch (error) { return error.name; } };
  return {
    origin: self.origin,
    cookie: await attempt(() => document.cookie),
    storage: await attempt(() => localStorage.length),
    api: await attempt(async () => (await fetch("/apis/user.openshift.io/v1/users/~")).status),
    worker: await attempt(() => navigator.serviceWorker.register("worker.js")),
    script: document.title,
  };
})()
"""


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    """A network of loopback and the address of a node."""
    with only_loopback():
        run("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", "lo")
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = server_with_users(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


@pytest.fixture
async def browser(server: ApiServer) -> AsyncIterator[Browser]:
    with running_chromium(server) as url:
        async with browser_context(url) as context:
            yield context


async def respond(request: web.Request) -> web.Response:
    if request.path.endswith(".js"):
        return web.Response(text="", content_type="text/javascript", headers={"Service-Worker-Allowed": "/"})
    text = "<!DOCTYPE html><link rel=icon href=data:,><title>Pod</title><script>document.title = 'ran'</script>"
    headers = {"Content-Security-Policy": "sandbox allow-scripts allow-same-origin"}
    return web.Response(text=text, content_type="text/html", headers=headers)


@pytest.fixture
async def page_url(server: ApiServer, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a program on a node, behind the proxy of the master."""
    application = web.Application()
    application.router.add_get("/{path:.*}", respond)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, NODE_ADDRESS, 0).start()
    port = runner.addresses[0][1]
    node = {"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]}}
    async with user_session(server, tmp_path, "system:admin", "system:masters") as admin:
        async with admin.post("/api/v1/nodes", json=node) as response:
            assert response.status == 201, await response.text()
        binding = {
            "metadata": {"name": "alice"},
            "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
        }
        bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        async with admin.post(bindings, json=binding) as response:
            assert response.status == 201
    try:
        yield f"{server.url}/api/v1/nodes/n1:{port}/proxy/"
    finally:
        await runner.cleanup()


async def authenticated_page(browser: Browser, token: str) -> Page:
    """Return a page that sends the token with each request, as if the browser had a client certificate."""
    page = await browser.open()
    await page.send("Network.enable")
    await page.send("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {token}"})
    return page


async def test_script_of_a_proxied_page_has_another_origin(server: ApiServer, browser: Browser, page_url: str) -> None:
    async with oauth_session(server) as session:
        token = await session.token("alice")
    async with token_session(server, token) as alice, alice.get(page_url) as response:
        assert response.status == 200, await response.text()
    page = await authenticated_page(browser, token)
    await page.go(page_url)
    assert await page.evaluate(PROBE) == {
        "origin": "null",
        "cookie": "SecurityError",
        "storage": "SecurityError",
        "api": "TypeError",
        "worker": "SecurityError",
        "script": "ran",
    }
    page.problems.clear()  # The browser reports each of the attempts.
    await page.go(f"{server.url}/version")
    own = await page.evaluate(PROBE)
    assert (own["origin"], own["api"]) == (server.url, "200")
    page.problems.clear()
