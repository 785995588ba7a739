"""Headless Chromium, driven by its DevTools protocol. Elements are found by role and name, as a screen reader does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.wait import DEADLINE_SECONDS, wait_until

COMMAND = "chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium's sandbox rejects root.
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-site-isolation-trials",  # Frames of other origins belong to their page.
    "--disable-features=IsolateOrigins,site-per-process",
    "--disable-sync",
    "--remote-debugging-port=0",
)

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}
"""Key → code of Windows, and text that it enters."""

SHIFT = 8


def missing() -> str:
    """Return why no browser can run; empty if one can."""
    return "" if shutil.which(COMMAND) else f"no {COMMAND} here; `make browser` installs it"


@contextmanager
def running_chromium(*servers: ApiServer) -> Iterator[str]:
    """Run Chromium, and yield the URL of its DevTools. It accepts the keys of these servers, and no other ones."""
    keys = ",".join(_key_hash(server) for server in servers)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = (COMMAND, *FLAGS, f"--user-data-dir={profile}", f"--ignore-certificate-errors-spki-list={keys}")
        process = subprocess.Popen(
            command,
            env={**os.environ, "HOME": profile},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port, path = wait_until(lambda: _devtools(Path(profile), process), "DevTools of Chromium")
            yield f"ws://127.0.0.1:{port}{path}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_SECONDS)


def _devtools(profile: Path, process: subprocess.Popen[bytes]) -> list[str]:
    """Return port and path of DevTools; nothing if Chromium has not opened the port yet."""
    assert process.poll() is None, "Chromium ended"
    with contextlib.suppress(FileNotFoundError):
        lines = (profile / "DevToolsActivePort").read_text().split()
        return lines if len(lines) == 2 else []
    return []


def _key_hash(server: ApiServer) -> str:
    """Return the SHA-256 hash of the public key of a server."""
    host, _, port = server.url.removeprefix("https://").partition(":")
    certificate = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(key).digest()).decode()


class Browser:
    """A connection to DevTools with one browser context: pages that share cookies, and none of another context."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._results: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._context = ""
        self.pages: dict[str, Page] = {}

    async def start(self) -> None:
        """Create the browser context. It ends with the connection."""
        context = await self.send("Target.createBrowserContext", disposeOnDetach=True)
        self._context = context["browserContextId"]

    async def send(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._results[number] = result
        await self._socket.send_json(
            {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        )
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await result

    async def receive(self) -> None:
        """Deliver results and events until the connection is closed."""
        async for text in self._socket:
            message = text.json()
            if "id" not in message:
                if page := self.pages.get(message.get("sessionId", "")):
                    page.handle(message["method"], message["params"])
            elif "error" in message:
                self._results.pop(message["id"]).set_exception(AssertionError(message["error"]))
            else:
                self._results.pop(message["id"]).set_result(message["result"])

    async def open(self, url: str = "about:blank") -> Page:
        """Open a page in a tab of its own."""
        target = await self.send("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self.pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Audits", "DOM", "Accessibility"):
            await page.send(f"{domain}.enable")
        await page.go(url)
        return page

    async def cookies(self) -> dict[str, dict[str, Any]]:
        """Return the cookies by name."""
        result = await self.send("Storage.getCookies", browserContextId=self._context)
        return {cookie["name"]: cookie for cookie in result["cookies"]}


@dataclass(frozen=True, slots=True)
class Element:
    """An element of the accessibility tree. `node` is its number in the DOM."""

    role: str
    name: str
    description: str
    node: int
    properties: dict[str, Any]

    @property
    def is_checked(self) -> bool:
        """Return whether a checkbox is ticked."""
        return bool(self.properties["checked"] == "true")


class Page:
    """A tab. `problems` are errors on its console, violations of its Content-Security-Policy, and the like."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = asyncio.Event()
        self.problems: list[str] = []

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command about this page and return its result."""
        return await self._browser.send(method, self._session, **parameters)

    def handle(self, event: str, parameters: dict[str, Any]) -> None:
        """Take notice of an event."""
        match event:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Page.frameNavigated" if parameters["type"] == "BackForwardCacheRestore":
                self._loaded.set()
            case "Log.entryAdded" if (entry := parameters["entry"])["level"] in ("error", "warning"):
                self.problems.append(f"{entry['source']}: {entry['text']}")
            case "Audits.issueAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.problems.append(f"{event}: {parameters}")
            case "Page.javascriptDialogOpening":
                self.problems.append(f"dialog: {parameters['message']}")

    @asynccontextmanager
    async def loading(self) -> AsyncIterator[None]:
        """Wait until the page is loaded to which the actions inside lead."""
        self._loaded.clear()
        yield
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._loaded.wait()
        except TimeoutError as error:
            raise AssertionError(f"no page was loaded: {self.problems}") from error

    def expect_problem(self, text: str) -> None:
        """Forget the problem whose description contains the text. Fails if there is none."""
        found = [problem for problem in self.problems if text in problem]
        assert found, self.problems
        self.problems.remove(found[0])

    async def go(self, url: str) -> None:
        """Open a URL."""
        async with self.loading():
            await self.send("Page.navigate", url=url)

    async def go_in_history(self, steps: int) -> None:
        """Go back (negative) or forward in the history, as the buttons of the browser do."""
        history = await self.send("Page.getNavigationHistory")
        entry = history["entries"][history["currentIndex"] + steps]
        async with self.loading():
            await self.send("Page.navigateToHistoryEntry", entryId=entry["id"])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def url(self) -> str:
        """Return the URL of the page."""
        return cast("str", await self.evaluate("location.href"))

    async def text(self) -> str:
        """Return the text that is to be seen."""
        return cast("str", await self.evaluate("document.body.innerText"))

    async def source(self) -> str:
        """Return the HTML of the page."""
        return cast("str", await self.evaluate("document.documentElement.outerHTML"))

    async def elements(self, frame: str = "") -> list[Element]:
        """Return what assistive technology gets to know of the page, or of a frame in it."""
        tree = await self.send("Accessibility.getFullAXTree", **({"frameId": frame} if frame else {}))
        return [
            Element(
                node["role"]["value"],
                node.get("name", {}).get("value", ""),
                node.get("description", {}).get("value", ""),
                node.get("backendDOMNodeId", 0),
                {item["name"]: item["value"].get("value") for item in node.get("properties", ())},
            )
            for node in tree["nodes"]
            if not node["ignored"]
        ]

    async def names(self, role: str) -> list[str]:
        """Return the names of the elements of a role."""
        return [element.name for element in await self.elements() if element.role == role]

    async def frame_headings(self) -> list[str]:
        """Return the headings in the only frame of the page."""
        (frame,) = (await self.send("Page.getFrameTree"))["frameTree"]["childFrames"]
        elements = await self.elements(frame["frame"]["id"])
        return [element.name for element in elements if element.role == "heading"]

    async def find(self, role: str, name: str) -> Element:
        """Return the only element of this role whose name begins so."""
        elements = await self.elements()
        found = [element for element in elements if element.role == role and element.name.startswith(name)]
        assert len(found) == 1, (self.problems, [(element.role, element.name) for element in elements])
        return found[0]

    async def focused(self) -> tuple[str, str]:
        """Return role and name of the element that has the focus."""
        (found,) = [
            (element.role, element.name)
            for element in await self.elements()
            if element.properties.get("focused") and element.role != "RootWebArea"
        ] or [("", "")]
        return found

    async def click(self, role: str, name: str) -> None:
        """Click on an element."""
        node = (await self.find(role, name)).node
        await self.send("DOM.scrollIntoViewIfNeeded", backendNodeId=node)
        quads = await self.send("DOM.getContentQuads", backendNodeId=node)
        x1, y1, _, _, x2, y2, *_ = quads["quads"][0]
        place = {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, **place)

    async def follow(self, role: str, name: str) -> None:
        """Click on an element, and wait for the page to which it leads."""
        async with self.loading():
            await self.click(role, name)

    async def press(self, key: str, shift: bool = False) -> None:
        """Press and release a key of KEYS."""
        code, text = KEYS[key]
        same = {
            "code": key,
            "key": text if key == "Space" else key,
            "windowsVirtualKeyCode": code,
            "modifiers": SHIFT if shift else 0,
        }
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **same)

    async def type(self, text: str) -> None:
        """Type characters into the element that has the focus."""
        for character in text:
            await self.send("Input.dispatchKeyEvent", type="keyDown", text=character, key=character)
            await self.send("Input.dispatchKeyEvent", type="keyUp", key=character)

    async def fill(self, name: str, text: str) -> None:
        """Click on a text field and type characters into it."""
        await self.click("textbox", name)
        await self.type(text)


@asynccontextmanager
async def browser_context(devtools: str) -> AsyncIterator[Browser]:
    """Yield a browser without cookies, at the URL of `running_chromium`. At the end no page may have problems."""
    async with aiohttp.ClientSession() as http, http.ws_connect(devtools, max_msg_size=0) as socket:
        browser = Browser(socket)
        receiver = asyncio.create_task(browser.receive())
        try:
            await browser.start()
            yield browser
        finally:
            receiver.cancel()
        assert [problem for page in browser.pages.values() for problem in page.problems] == []
