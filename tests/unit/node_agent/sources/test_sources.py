"""Sources of static pods: files, a URL and a socket; parsing and precedence."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from api.core.placement import Toleration
from api.core.pod import Pod
from api.validation import static_pods
from node_agent.sources.file import FileSource
from node_agent.sources.local_api import LocalApiSource
from node_agent.sources.static_pods import ManifestOrigin, ParsedManifest, SourcePods, merge_sources, parse_manifest
from node_agent.sources.url import UrlSource
from tests.testbed.node.events import FakeEventRecorder

SECONDS = 20.0
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORIGIN = ManifestOrigin("Node-1", "file", "/a.yaml")
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: red}
spec: {containers: [{name: main, image: IMAGE}]}
"""


def manifest(name: str, image: str = "toolbox") -> str:
    return POD.replace("NAME", name).replace("IMAGE", image)


def images(pods: tuple[Pod, ...]) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.containers[0].image for pod in pods}


def parse(text: str, previous: tuple[Pod, ...] = ()) -> ParsedManifest:
    return parse_manifest(text, ORIGIN, previous, NOW)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_static_pod_has_annotations_node_and_uid_of_its_content() -> None:
    [pod] = parse(manifest("web")).pods
    meta = pod.metadata
    assert (meta.name, meta.namespace, pod.spec.node_name, pod.status.phase) == (
        "web-node-1",
        "red",
        "Node-1",
        "Pending",
    )
    assert len(meta.uid) == 32
    assert meta.annotations == {
        "kubernetes.io/config.hash": meta.uid,
        "kubernetes.io/config.source": "file",
        "kubernetes.io/config.seen": "2026-01-31T12:00:00Z",
    }
    assert pod.spec.tolerations == (Toleration(operator="Exists", effect="NoExecute"),)
    assert static_pods.is_static(pod)
    [unchanged] = parse_manifest(manifest("web"), ORIGIN, (), datetime(2027, 1, 1, tzinfo=UTC)).pods
    assert unchanged.metadata.uid == meta.uid, "when it is read does not matter"
    others = [
        parse(manifest("web", "toolbox:2")),
        parse_manifest(manifest("web"), ManifestOrigin("node-2", "file", "/a.yaml"), (), NOW),
        parse_manifest(manifest("web"), ManifestOrigin("Node-1", "file", "/b.yaml"), (), NOW),
    ]
    assert len({meta.uid, *(other.pods[0].metadata.uid for other in others)}) == 4


def test_static_pod_drops_server_set_fields() -> None:
    exported: dict[str, object] = {"apiVersion": "v1", "kind": "Pod"}
    exported["metadata"] = {
        "name": "web",
        "uid": "../../etc",
        "resourceVersion": "7",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["a/b"],
        "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "api", "a": "b"},
    }
    exported["spec"] = {"nodeName": "node-1", "containers": [{"name": "main", "image": "x"}]}
    exported["status"] = {"phase": "Failed"}
    [pod] = parse_manifest(json.dumps(exported), ManifestOrigin("node-1", "file", "/a.yaml"), (), NOW).pods
    assert pod.metadata.uid.isalnum()
    assert pod.metadata.deletion_timestamp is None
    assert not pod.metadata.finalizers
    assert pod.status.phase == "Pending"
    assert not static_pods.is_mirror(pod)
    assert pod.metadata.annotations["a"] == "b"
    assert pod.metadata.annotations["kubernetes.io/config.source"] == "file"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("serviceAccountName: builder", "spec.serviceAccountName"),
        ("imagePullSecrets: [{name: x}]", "spec.imagePullSecrets"),
        ("nodeName: node-2", "spec.nodeName"),
    ],
)
def test_static_pod_with_api_references_is_rejected(spec: str, path: str) -> None:
    [refusal] = parse(manifest("web").replace("spec: {", "spec: {" + spec + ", ")).rejected
    assert [problem.path for problem in refusal.problems] == [path]


def test_static_pod_references_are_found_by_path() -> None:
    wire = {
        "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "configMap": {"name": "x"}},
            {"name": "c", "secret": {"secretName": "x"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "x"}},
            {"name": "e", "projected": {"sources": [{"downwardAPI": {}}, {"secret": {"name": "x"}}]}},
        ],
        "containers": [
            {
                "name": "m",
                "image": "i",
                "envFrom": [{"prefix": "a"}, {"secretRef": {"name": "x"}}],
                "env": [
                    {"name": "a", "value": "b"},
                    {"name": "c", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}},
                ],
            }
        ],
        "serviceAccountName": "x",
    }
    pod = msgspec.convert({"metadata": {"name": "web"}, "spec": wire}, Pod)
    assert [problem.path for problem in static_pods.api_references(pod)] == [
        "spec.serviceAccountName",
        "spec.volumes[1].configMap",
        "spec.volumes[2].secret",
        "spec.volumes[3].persistentVolumeClaim",
        "spec.volumes[4].projected.sources[1].secret",
        "spec.containers[0].envFrom[1].secretRef",
        "spec.containers[0].env[1].valueFrom.configMapKeyRef",
    ]


def test_static_pod_needs_a_name_that_fits_with_the_nodes() -> None:
    for name in ('""', "x" * 250):
        [refusal] = parse(manifest(name)).rejected
        assert {problem.path for problem in refusal.problems} == {"metadata.name"}
    [refusal] = parse(manifest("web").replace("name: web", "generateName: web")).rejected
    assert refusal.problems[0].path == "metadata.name"


def test_invalid_document_affects_no_other_document() -> None:
    before = parse("\n---\n".join([manifest("a"), manifest("b"), manifest("c")])).pods
    broken = [manifest("a", "new"), "{", manifest("c").replace("image", "imagine")]
    after = parse("\n---\n".join(broken), before)
    assert images(after.pods) == {"a-node-1": "new", "b-node-1": "toolbox", "c-node-1": "toolbox"}
    assert [refusal.number for refusal in after.rejected] == [2, 3]
    assert images(parse(manifest("a"), after.pods).pods) == {"a-node-1": "toolbox"}


def test_pod_list_items_need_no_kind() -> None:
    document = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    pod_list = {"apiVersion": "v1", "kind": "PodList", "items": [document]}
    assert images(parse(json.dumps(pod_list, indent="\t")).pods) == {"a-node-1": "i"}
    [refusal] = parse('{"apiVersion": "v1", "kind": "PodList", "items": 7}').rejected
    assert refusal.problems[0].path == "items"


# --- merging ----------------------------------------------------------------------------------------------------------


def test_first_of_equally_named_pods_is_taken() -> None:
    [first], [second] = parse(manifest("web")).pods, parse(manifest("web", "second")).pods
    [other] = parse(manifest("db")).pods
    pods, duplicates = merge_sources(
        [SourcePods("a", (first, other)), SourcePods("b", (second,)), SourcePods("c", (first,))]
    )
    assert images(tuple(pods.values())) == {"web-node-1": "toolbox", "db-node-1": "toolbox"}
    ignored = [(duplicate.pod, duplicate.location, duplicate.first_location) for duplicate in duplicates]
    assert ignored == [(second, "b", "a"), (first, "c", "a")]


# --- files ------------------------------------------------------------------------------------------------------------


class Folder:
    """A directory of manifests and its pods, as name and image."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changes = 0
        self.recorder = FakeEventRecorder()
        self.source = FileSource(directory, "Node-1", "file", self._count, self.recorder)

    def _count(self) -> None:
        self.changes += 1

    def write(self, file: str, text: str | bytes) -> None:
        (self.directory / file).write_bytes(text if isinstance(text, bytes) else text.encode())

    async def pods(self) -> dict[str, str]:
        await self.source.read()
        return images(tuple(merge_sources(self.source.source_pods)[0].values()))

    def uids(self) -> set[str]:
        return set(merge_sources(self.source.source_pods)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_file_source_follows_its_files(folder: Folder) -> None:
    assert await folder.pods() == {}
    folder.write("a.yaml", manifest("web") + "---\n" + manifest("db"))
    assert await folder.pods() == {"web-node-1": "toolbox", "db-node-1": "toolbox"}
    before = folder.uids()
    assert await folder.pods()
    assert folder.uids() == before
    folder.write("a.yaml", manifest("web", "toolbox:2"))
    assert await folder.pods() == {"web-node-1": "toolbox:2"}
    assert not folder.uids() & before, "another pod, which takes the place of the first"
    (folder.directory / "a.yaml").unlink()
    assert await folder.pods() == {}


async def test_file_source_is_synced_after_the_first_read(folder: Folder) -> None:
    synced_states = [folder.source.synced]
    await folder.pods()
    synced_states.append(folder.source.synced)
    assert synced_states == [False, True]


async def test_file_source_reports_no_change_for_equal_content(folder: Folder) -> None:
    folder.write("a.yaml", manifest("web"))
    await folder.pods()
    changes, pods = folder.changes, folder.source.source_pods[0].pods
    await folder.pods()
    assert folder.changes == changes
    folder.write("a.yaml", "# the same\n" + manifest("web"))
    await folder.pods()
    assert folder.source.source_pods[0].pods == pods, "with the time when it was first seen"


@pytest.mark.parametrize(
    "broken",
    [b"{", b"kind: Pod", b"\0", manifest("web", "").encode(), b"[]", b"kind: Node", b"\xff", b"x: !!int"],
)
async def test_file_source_keeps_pods_of_a_broken_file(folder: Folder, broken: bytes) -> None:
    folder.write("a.yaml", manifest("web"))
    folder.write("b.yaml", manifest("db"))
    await folder.pods()
    folder.write("a.yaml", broken)
    folder.write("b.yaml", manifest("other"))
    assert await folder.pods() == {"web-node-1": "toolbox", "other-node-1": "toolbox"}
    folder.write("a.yaml", manifest("web", "mended"))
    assert await folder.pods() == {"web-node-1": "mended", "other-node-1": "toolbox"}


async def test_file_source_reports_an_invalid_file_once(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder.write("a.yaml", "{")
    folder.write("b.yaml", b"\xff")
    folder.write("c.yaml", b"#" * (10 << 20) + b"#")
    for _ in range(3):
        await folder.pods()
    assert len(caplog.records) == 3


async def test_file_source_takes_the_first_of_two_equally_named_pods(folder: Folder) -> None:
    folder.write("b.yaml", manifest("web", "second"))
    folder.write("a.yaml", manifest("web", "first") + "---\n" + manifest("web", "third"))
    assert await folder.pods() == {"web-node-1": "first"}
    assert len(merge_sources(folder.source.source_pods)[1]) == 2
    (folder.directory / "a.yaml").unlink()
    assert await folder.pods() == {"web-node-1": "second"}


async def test_file_source_ignores_hidden_files_and_folders(folder: Folder) -> None:
    folder.write(".a.yaml.swp", manifest("web"))
    (folder.directory / "folder").mkdir()
    assert await folder.pods() == {}


# --- URL --------------------------------------------------------------------------------------------------------------


class Site:
    """An HTTP server with one page."""

    def __init__(self) -> None:
        self.body: bytes = b""
        self.status = 200
        self.etag = ""
        self.requests: list[dict[str, str]] = []
        self.changes = 0
        self.recorder = FakeEventRecorder()

    def changed(self) -> None:
        self.changes += 1

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(dict(request.headers))
        if self.etag and request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304)
        headers = {"ETag": self.etag, "Last-Modified": "Sat, 31 Jan 2026 12:00:00 GMT"} if self.etag else {}
        headers |= {"Location": "/elsewhere"} if self.status == 302 else {}
        return web.Response(body=self.body, status=self.status, headers=headers)


@pytest.fixture
async def site() -> AsyncIterator[tuple[Site, UrlSource, aiohttp.ClientSession]]:
    page = Site()
    app = web.Application()
    app.router.add_get("/pods", page.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    headers = {"X-Rack": "7"}
    source = UrlSource(f"http://127.0.0.1:{port}/pods", headers, "Node-1", page.changed, page.recorder)
    try:
        async with aiohttp.ClientSession(headers=headers) as http:
            yield page, source, http
    finally:
        await runner.cleanup()


SiteFixture = tuple[Site, UrlSource, aiohttp.ClientSession]


def of(source: UrlSource) -> dict[str, str]:
    return images(source.source_pods[0].pods)


async def test_url_source_yields_pods_and_requests_changes_only(site: SiteFixture) -> None:
    page, source, http = site
    page.body, page.etag = manifest("web").encode(), '"1"'
    await source.read(http)
    assert (of(source), source.synced, page.changes) == ({"web-node-1": "toolbox"}, True, 1)
    assert source.source_pods[0].pods[0].metadata.annotations["kubernetes.io/config.source"] == "http"
    await source.read(http)
    assert (of(source), page.changes) == ({"web-node-1": "toolbox"}, 1)
    assert page.requests[1]["If-None-Match"] == '"1"'
    assert page.requests[1]["If-Modified-Since"] == "Sat, 31 Jan 2026 12:00:00 GMT"
    assert [headers_of_request["X-Rack"] for headers_of_request in page.requests] == ["7", "7"]
    page.body, page.etag = b"", '"2"'
    await source.read(http)
    assert (of(source), page.changes) == ({}, 2)


async def test_url_source_is_synced_by_an_empty_body(site: SiteFixture) -> None:
    page, source, http = site
    await source.read(http)
    assert (of(source), source.synced, page.changes) == ({}, True, 1)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b""),
        (302, b""),
        (204, b""),
        (200, b"<html>no</html>"),
        (200, b"{"),
        (200, b"\xff"),
        (200, b"#" * (10 << 20) + b"#"),
        (200, b"kind: PodList\nitems: [7]"),
    ],
)
async def test_url_source_ignores_an_invalid_response(site: SiteFixture, status: int, body: bytes) -> None:
    page, source, http = site
    page.status, page.body = status, body
    await source.read(http)
    assert (of(source), source.synced) == ({}, False)
    assert {reason for reason, _, _ in page.recorder.events} == {"FailedValidation"}
    page.status, page.body = 200, manifest("web").encode()
    await source.read(http)
    page.status, page.body = status, body
    await source.read(http)
    assert (of(source), source.synced) == ({"web-node-1": "toolbox"}, True)


async def test_url_source_reports_an_unreachable_url_once(caplog: pytest.LogCaptureFixture) -> None:
    source = UrlSource("http://127.0.0.1:1/pods", {}, "node-1", lambda: None, FakeEventRecorder())
    async with aiohttp.ClientSession() as http:
        await source.read(http)
        await source.read(http)
    assert not source.synced
    assert len([record for record in caplog.records if "manifest URL" in record.message]) == 1


# --- socket -----------------------------------------------------------------------------------------------------------


class LocalApiClient:
    """A client of the agent's local API."""

    def __init__(self, root: Path, http: aiohttp.ClientSession) -> None:
        self.root = root
        self.http = http
        self.source = LocalApiSource(root / "s", root / "submitted", "Node-1", lambda: None, FakeEventRecorder())

    async def request(self, method: str, path: str, body: str = "") -> tuple[int, dict[str, object]]:
        async with self.http.request(
            method, f"http://node{path}", data=io.BytesIO(body.encode() if isinstance(body, str) else body)
        ) as answer:
            return answer.status, await answer.json()

    def pods(self) -> dict[str, str]:
        return images(tuple(pod for source in self.source.source_pods for pod in source.pods))


@contextlib.asynccontextmanager
async def local_api(root: Path) -> AsyncIterator[LocalApiClient]:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(root / "s"))) as http:
        client = LocalApiClient(root, http)
        # The socket of an earlier source is still there. Its file must not be taken for that of this one.
        (root / "s").unlink(missing_ok=True)
        running = asyncio.create_task(client.source.run())
        try:
            await until(lambda: client.source.synced and (root / "s").exists())
            yield client
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_local_api_source_creates_replaces_and_deletes_pods(tmp_path: Path) -> None:
    async with local_api(tmp_path) as local_pods:
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        code, body = await local_pods.request("POST", "/pods", manifest("web"))
        assert code == 201
        assert body["metadata"]["name"] == "web-node-1"  # type: ignore[index]
        assert (await local_pods.request("POST", "/pods", manifest("web", "other")))[0] == 409
        assert local_pods.pods() == {"web-node-1": "toolbox"}
        assert (await local_pods.request("PUT", "/pods/red/web", manifest("web", "toolbox:2")))[0] == 200
        assert (await local_pods.request("PUT", "/pods/red/db", DB))[0] == 201
        assert local_pods.pods() == {"web-node-1": "toolbox:2", "db-node-1": "toolbox"}
        code, body = await local_pods.request("GET", "/pods")
        assert (code, len(body["items"])) == (200, 2)  # type: ignore[arg-type]
        assert (await local_pods.request("DELETE", "/pods/red/web"))[0] == 200
        assert (await local_pods.request("DELETE", "/pods/red/web"))[0] == 404
        assert (await local_pods.request("GET", "/pods/red/web"))[0] == 404
        assert local_pods.pods() == {"db-node-1": "toolbox"}


DB = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db", "namespace": "red"},
        "spec": {"containers": [{"name": "m", "image": "toolbox"}]},
    }
)


async def test_local_api_source_keeps_pods_over_a_restart(tmp_path: Path) -> None:
    async with local_api(tmp_path) as local_pods:
        await local_pods.request("POST", "/pods", manifest("web"))
        [uid] = [pod.metadata.uid for source in local_pods.source.source_pods for pod in source.pods]
    (tmp_path / "submitted" / ".part.json").write_text("{")
    async with local_api(tmp_path) as local_pods:
        assert [pod.metadata.uid for source in local_pods.source.source_pods for pod in source.pods] == [uid]
        assert [entry.name[0] for entry in (tmp_path / "submitted").iterdir()] != ["."]


async def test_local_api_source_rejects_invalid_pods_by_path(tmp_path: Path) -> None:
    wrong = manifest("Web").replace("main, image", "Main, imagine").replace("spec: {", "spec: {nodeName: a_b, ")
    async with local_api(tmp_path) as local_pods:
        code, body = await local_pods.request("POST", "/pods", wrong)
        assert (code, body["kind"], body["reason"]) == (422, "Status", "Invalid")
        assert {cause["field"] for cause in body["details"]["causes"]} == {  # type: ignore[index]
            "metadata.name",
            "spec.nodeName",
            "spec.containers[0].name",
            "spec.containers[0].image",
            "spec.containers[0].imagine",
        }
        for text in ("{", "", manifest("a") + "---\n" + manifest("b"), "kind: Pod", "[]"):
            assert (await local_pods.request("POST", "/pods", text))[0] in {400, 422}
        assert (await local_pods.request("PUT", "/pods/blue/web", manifest("web")))[0] == 400
        assert (await local_pods.request("POST", "/pods", "#" * (11 << 20)))[0] == 413
        assert (await local_pods.request("PATCH", "/pods/red/web"))[0] == 405
        assert (await local_pods.request("GET", "/nothing"))[0] == 404
        assert local_pods.pods() == {}
        assert not list((tmp_path / "submitted").iterdir())


async def test_local_api_source_reports_a_full_disk_and_changes_nothing(tmp_path: Path) -> None:
    async with local_api(tmp_path) as local_pods:
        await local_pods.request("POST", "/pods", manifest("web"))
        [stored_file] = (tmp_path / "submitted").iterdir()
        stored_file.with_name(f".{stored_file.name}.new").mkdir()  # nothing can be written there
        code, body = await local_pods.request("PUT", "/pods/red/web", manifest("web", "new"))
        assert code == 507
        assert "nothing was changed" in str(body["message"])
        assert local_pods.pods() == {"web-node-1": "toolbox"}
