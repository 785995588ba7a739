"""The times at which probes run and stop, and the effects of their results on a terminating pod."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.testbed.node.pods import NodePods, main, pod
from tests.testbed.self_signed import self_signed
from tests.testbed.wait import wait_until

OFTEN = "periodSeconds: 1, failureThreshold: 1"


class Site(ThreadingHTTPServer):
    """A web server that records the headers of every request by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.headers_by_path: dict[str, list[tuple[str, str]]] = {}


class _Answers(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.headers_by_path[self.path] = [(name.title(), value) for name, value in self.headers.items()]
        elsewhere = {"/here": "/plain", "/away": "http://192.0.2.1/"}.get(self.path)
        self.send_response(302 if elsewhere else 500 if self.path == "/broken" else 200)
        if elsewhere:
            self.send_header("Location", elsewhere)
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.path == "/endless":
                self.wfile.write(bytes(4096))

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def serving(server: Site) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asking(name: str, port: int, path: str, more: str = "") -> str:
    probe = f"httpGet: {{host: 127.0.0.1, port: {port}, path: '{path}'{more}}}"
    return main(more=f"readinessProbe: {{{probe}, {OFTEN}, timeoutSeconds: 5}}", name=name)


def test_http_probe_sends_kubelets_request(alone: NodePods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as surroundings:
        for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
            surroundings.setenv(variable, "http://127.0.0.1:9")
        alone.node.agent()
    plain, secured = Site(), Site()
    secured.socket = self_signed(tmp_path).wrap_socket(secured.socket, server_side=True)
    with serving(plain) as port, serving(secured) as safe:
        headers = ", httpHeaders: [{name: Host, value: shop.example}, {name: X-Who, value: me}]"
        plainly = f"host: 127.0.0.1, port: {port}, path: /hook, scheme: HTTPS"
        alone.apply(
            pod(
                "asked",
                asking("plain", port, "/plain?a=b", headers)
                + asking("here", port, "/here")
                + asking("away", port, "/away")
                + asking("endless", port, "/endless")
                + asking("safe", safe, "/safe", ", scheme: HTTPS")
                + asking("broken", port, "/broken")
                + main(more=f"lifecycle: {{postStart: {{httpGet: {{{plainly}}}}}}}", name="hooked"),
                "hostNetwork: true",
            )
        )
        good = {"hooked", "plain", "here", "away", "endless", "safe"}
        wait_until(
            lambda: {name for name, status in alone.statuses("asked").items() if status["ready"]} == good,
            "the good ones",
        )
        alone.until_events(
            "asked",
            ("Warning", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500"),
            ("Warning", "ProbeWarning", "Readiness probe warning: Probe terminated redirects, Response body: "),
        )
    assert sorted(plain.headers_by_path["/plain?a=b"]) == [
        ("Accept", "*/*"),
        ("Connection", "close"),
        ("Host", "shop.example"),
        ("User-Agent", "kube-probe/1.36"),
        ("X-Who", "me"),
    ]
    assert dict(plain.headers_by_path["/here"])["Host"] == f"127.0.0.1:{port}"
    assert set(plain.headers_by_path) == {"/plain?a=b", "/plain", "/here", "/away", "/endless", "/broken", "/hook"}
    assert dict(plain.headers_by_path["/hook"])["User-Agent"] == "kube-lifecycle/1.36", (
        "a hook falls back to plain HTTP"
    )


def test_exec_probe_is_ended_at_its_timeout(alone: NodePods) -> None:
    chatty = "readinessProbe: {exec: {command: [sh, -c, 'yes | head -c 1000000; exit 1']}, PERIOD}"
    slow = "readinessProbe: {exec: {command: [sleep, '1000']}, PERIOD, timeoutSeconds: 1}"
    containers = main(more=chatty.replace("PERIOD", OFTEN), name="chatty") + main(
        more=slow.replace("PERIOD", OFTEN), name="slow"
    )
    alone.apply(pod("programs", containers))
    failed = "Readiness probe failed: "
    alone.until_events(
        "programs",
        ("Warning", "Unhealthy", f'{failed}command "sleep 1000" timed out after 1s'),
        ("Warning", "Unhealthy", f"{failed}y\ny\n"),
    )
    [output] = {
        words for _, _, words, part in alone.events("programs") if part == "spec.containers{chatty}" and failed in words
    }
    assert len(output) <= len(failed) + (10 << 10)
    assert len(output) > 10_000
    assert {status["ready"] for status in alone.statuses("programs").values()} == {False}


def test_failed_liveness_probe_pauses_until_the_container_is_replaced(alone: NodePods, tmp_path: Path) -> None:
    life = f"livenessProbe: {{exec: {{command: [sh, -c, 'echo asked >> /out/said; exit 1']}}, {OFTEN}"
    more = f"{life}, terminationGracePeriodSeconds: 3}}\nvolumeMounts: [{{name: out, mountPath: /out}}]"
    deaf = "echo began >> /out/said; trap '' TERM; while :; do sleep 0.1; done"
    volume = f"volumes: [{{name: out, hostPath: {{path: {tmp_path}}}}}]"
    alone.apply(pod("sick", main(deaf, more), volume, grace=6000))
    wait_until(lambda: alone.first_status("sick").get("restartCount", 0) >= 1, "it is started again")
    assert (tmp_path / "said").read_text().split()[:3] == ["began", "asked", "began"]
    alone.until_events(
        "sick",
        ("Warning", "Unhealthy", "Liveness probe failed: exit code 1"),
        ("Normal", "Killing", "Container main failed liveness probe, will be restarted"),
    )
    alone.delete("sick", "--grace-period=1")


def test_terminating_pod_runs_only_readiness_probes(alone: NodePods, tmp_path: Path) -> None:
    def asks(kind: str, command: str) -> str:
        return f"{kind}Probe: {{exec: {{command: [sh, -c, '{command}']}}, {OFTEN}}}\n"

    hook = "lifecycle: {preStop: {exec: {command: [sh, -c, 'until test -e /out/go; do sleep 0.05; done']}}}\n"
    more = asks("readiness", "test -e /out/ready") + asks("liveness", "test -e /out/alive") + hook
    for name in ("ready", "alive"):
        (tmp_path / name).touch()
    volume = f"volumes: [{{name: out, hostPath: {{path: {tmp_path}}}}}]"
    alone.apply(pod("goes", main(more=f"{more}volumeMounts: [{{name: out, mountPath: /out}}]"), volume, grace=600))
    alone.until_ready("goes")
    alone.delete("goes", wait=False)
    alone.until_events("goes", ("Normal", "Killing", "Stopping container main"))
    (tmp_path / "alive").unlink()
    (tmp_path / "ready").unlink()
    wait_until(lambda: not alone.node.is_ready("goes"), "it is told that it is not ready any more")
    assert "running" in alone.first_status("goes")["state"]
    (tmp_path / "ready").touch()
    wait_until(lambda: alone.node.is_ready("goes"), "and that it is again")
    assert not [words for _, _, words, _ in alone.events("goes") if words.startswith("Liveness")]
    (tmp_path / "go").touch()
    alone.node.kubectl("delete", "pod", "goes", "--grace-period=1", "--timeout=60s")
