"""Prometheus and promtool of Debian, from PATH or as `make contract` unpacks them, and our files for them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.testbed.ports import free_port
from tests.testbed.wait import wait_until

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))

_NOT_NAMES = re.compile(
    "absent|and|by|changes|count|histogram_quantile|increase|on|or|predict_linear|rate|scalar|sum|time|topk|unless"
    r"|without|e\d*"
)
_WITHOUT_NAMES = re.compile(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"|\b(?:by|on|without|ignoring)\s*\([^)]*\)')


def prometheus_command(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Skips the test where there is none."""
    unpacked = ROOT / ".prometheus" / "usr" / "bin" / name
    path = str(unpacked) if unpacked.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; `make contract` unpacks it on Debian")
    return path


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run([prometheus_command("promtool"), *words], capture_output=True, text=True, check=False)


def alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Yield the place and the expression of each query of the dashboards, with Grafana's variables replaced."""
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", _without_variables(target["expr"])
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                name, _, _ = variable["query"]["query"].removeprefix("label_values(").partition(",")
                yield f"{path.name}: variable {variable['name']}", name


def _without_variables(expression: str) -> str:
    return re.sub(r"\$(\w+)", lambda match: "5m" if match[1] == "__rate_interval" else ".*", expression)


def expressions() -> list[tuple[str, str]]:
    """Return the place and the expression of each query of dashboards and alerts."""
    return [*panel_expressions(), *((f"alert {rule['alert']}", rule["expr"]) for rule in alert_rules())]


def metric_names(expression: str) -> set[str]:
    """Return the names of the metrics in an expression of ours."""
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", _WITHOUT_NAMES.sub(" ", expression))
    return {word for word in words if not _NOT_NAMES.fullmatch(word)}


class Prometheus:
    """A Prometheus of a test, on a free port of loopback. Use it as `with Prometheus(directory) as prometheus`.

    `directory` has its configuration, `prometheus.yaml`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        command = (
            prometheus_command("prometheus"),
            f"--config.file={self._directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--web.console.templates=/nonexistent",
            "--web.console.libraries=/nonexistent",
        )
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        wait_until(self._is_ready, f"Prometheus answers: {self.log()}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def log(self) -> str:
        """Return the log."""
        return (self._directory / "log").read_text()

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(query)}"
        with urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def value(self, expression: str) -> float | None:
        """Return the value of an expression with one series or none."""
        rows = self.get("query", query=expression)["result"]
        assert len(rows) < 2, rows
        return float(rows[0]["value"][1]) if rows else None

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            self.get("status/buildinfo")
        except OSError:
            return False
        return True
