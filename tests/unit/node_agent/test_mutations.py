"""Ten thousand mutated manifests: none stops the agent, every error has a path, and no other pod is affected."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from api.core.node import Node, NodeStatus
from api.core.pod import Pod
from api.meta.types import ObjectMeta
from api.validation.static_pods import mirror_pod
from node_agent.host import HostInfo
from node_agent.pods.admission import admit, select_victims
from node_agent.pods.status import StatusInputs, compute_pod_status
from node_agent.runtime.actions import compute_pod_actions
from node_agent.runtime.container import RuntimePod
from node_agent.runtime.spec import container_hash, sandbox_config
from node_agent.runtime.termination import active_deadline
from node_agent.sources.file import FileSource
from node_agent.sources.local_api import LocalApiSource
from node_agent.sources.static_pods import ManifestOrigin, ParsedManifest, merge_sources, parse_manifest
from tests.testbed.node.events import FakeEventRecorder

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORIGIN = ManifestOrigin("node-1", "file", "/a.yaml")
HOST = HostInfo("/pods", 8 << 30, -1000)
NODE = Node(metadata=ObjectMeta(name="node-1", uid="u"), status=NodeStatus(allocatable={"cpu": "4", "pods": "9"}))
GOOD = "{apiVersion: v1, kind: Pod, metadata: {name: good}, spec: {containers: [{name: m, image: i}]}}"
RICH = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: red, labels: {app: web}, annotations: {example.com/a: b}}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 5
  activeDeadlineSeconds: 60
  nodeSelector: {disk: ssd}
  hostname: web
  os: {name: linux}
  priority: 7
  tolerations: [{key: a, operator: Exists, effect: NoSchedule}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]
  securityContext: {runAsUser: 1000, fsGroup: 7, sysctls: [{name: net.ipv4.tcp_syncookies, value: "1"}]}
  volumes:
  - {name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: h, hostPath: {path: /tmp, type: Directory}}
  initContainers:
  - {name: first, image: "toolbox:1", command: [sh, -c, "exit 0"]}
  containers:
  - name: main
    image: registry.example.com/toolbox:1
    imagePullPolicy: IfNotPresent
    command: [sh, -c]
    args: ["echo $(NAME)"]
    workingDir: /tmp
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: A, value: b}]
    ports: [{name: http, containerPort: 80, protocol: TCP}]
    resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 0.1, memory: 32Mi}}
    volumeMounts: [{name: v, mountPath: /v}, {name: h, mountPath: /h, readOnly: true}]
    securityContext: {capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true}
    readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 3}
"""
SHORT = """\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: red, labels: {app: web}}
spec:
  restartPolicy: OnFailure
  volumes:
  - {name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  containers:
  - name: main
    image: registry.example.com/toolbox:1
    command: [sh, -c, "exit 0"]
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: A, value: 'b'}]
    ports: [{name: http, containerPort: 80, protocol: TCP}]
    resources: {limits: {cpu: 500m}, requests: {cpu: 0.1}}
"""
"""The forms of YAML that RICH has, without its fields: mutated text is parsed by yaml, which is slow."""
NASTY: list[Any] = [
    None, True, 0, -1, 7.5, 1e308, 2**63, 2**70, -(2**70), "", " ", "\0", "ä", "x" * 300, "../../etc", "1e999", "10Gi",
    "---", "$(NAME)", "a\nb", [], {}, [[]], [None], {"": ""}, {"a": {"b": [1]}}, ["x"] * 50, "2026-01-31", "0x7", "-0",
]  # fmt: skip
NASTY_TEXT = [
    "\t", "\n---\n", "&a ", "*a", "!!int ", "!!binary ", "!!set ", "!!timestamp ", "%YAML 9.9\n", "'", '"', "{", "}",
    "[", "]", ":", "- ", "|", ">", "? ", "<<: ", "\0", "\ud800", "\ufeff", "2026-13-45", "=", "9" * 5000, "[" * 200,
    "null", "\\ud800", "1: 2, ", "\x85", "...\n", "!<x> ", "0o7", "~", "#", ".nan", "1:60:60",
]  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found_paths = [path]
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, text in rows:
        found_paths += paths(text, (*path, key))
    return found_paths


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def mutated(document: bytes, dice: random.Random) -> dict[str, Any]:
    """Return the document in JSON with one to three changes."""
    broken: dict[str, Any] = msgspec.json.decode(document)
    for _ in range(dice.randint(1, 3)):
        choices = paths(broken)[1:]
        if not choices:
            break
        *way, last = dice.choice(choices)
        holder = at(broken, tuple(way))
        kind = dice.randrange(6)
        if kind == 0:
            del holder[last]
        elif kind == 1:
            holder[last] = copy.deepcopy(at(broken, dice.choice(choices)))
        elif kind == 2 and isinstance(holder, dict):
            holder[dice.choice(["x", "", "a b", str(last) + "s"])] = holder.pop(last)
        elif kind == 3 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        else:
            holder[last] = copy.deepcopy(dice.choice(NASTY))
    return broken


def damaged(text: str, dice: random.Random) -> str:
    """Return a text with missing, repeated or strange characters."""
    for _ in range(dice.randint(1, 4)):
        spot, length = dice.randrange(len(text)), dice.randint(0, 12)
        middle = dice.choice(["", text[spot : spot + length] * 2, dice.choice(NASTY_TEXT)])
        text = text[:spot] + middle + text[spot + length :]
    return text


def examine(parsed: ParsedManifest) -> None:
    """Check that rejections have paths, and that accepted pods can be used by all decisions."""
    for rejected in parsed.rejected:
        assert rejected.problems
        assert all(problem.path for problem in rejected.problems), rejected
        assert str(rejected)
    for pod in parsed.pods:
        assert pod.metadata.uid.isalnum()
        sandbox_config(pod, "pause", 0, HOST)
        assert [container_hash(container) for container in pod.spec.containers]
        compute_pod_actions(pod, RuntimePod(), NOW)
        compute_pod_status(
            pod, RuntimePod(), StatusInputs(node_address="10.0.0.1", address="", now=NOW, started_at=NOW)
        )
        active_deadline(pod, RuntimePod(), NOW)
        admit(pod, NODE, [pod])
        select_victims(pod, NODE, [pod])
        encoded = msgspec.json.encode(mirror_pod(pod, NODE))
        assert msgspec.json.decode(encoded, type=Pod).spec == pod.spec


@pytest.mark.parametrize("seed", range(8))
def test_mutated_documents_are_accepted_or_rejected_by_path(seed: int) -> None:
    dice = random.Random(seed)
    rich = msgspec.json.encode(yaml.safe_load(RICH))
    refused = 0
    for _ in range(1000):
        parsed = parse_manifest(json.dumps(mutated(rich, dice)), ORIGIN, (), NOW)
        assert len(parsed.pods) + len(parsed.rejected) == 1
        refused += len(parsed.rejected)
        examine(parsed)
    assert 300 < refused < 1000, "some are accepted, so that what comes after is tried as well"


@pytest.mark.parametrize("seed", range(4))
def test_truncated_text_affects_no_other_document(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(500):
        text = damaged(SHORT, dice)
        parsed = parse_manifest(f"{text}\n---\n{GOOD}", ORIGIN, (), NOW)
        assert "good-node-1" in {pod.metadata.name for pod in parsed.pods}, text
        examine(parsed)
        merge_sources([])


@pytest.mark.parametrize("text", [RICH, SHORT])
def test_unmutated_pod_is_valid(text: str) -> None:
    parsed = parse_manifest(text, ORIGIN, (), NOW)
    assert not parsed.rejected
    assert len(parsed.pods) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        + "".join(f"{chr(98 + n)}{n}: &{chr(99 + n)} [{','.join([f'*{chr(98 + n)}'] * 9)}]\n" for n in range(12)),
        "&a [*a]",
        "&a {a: *a}",
        "[" * 100_000,
        "{a: " * 5_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "? {}",
        "!!python/object/apply:os.system [x]",
    ],
    ids=["laughs", "knot", "map-knot", "deep", "deeper", "deep-json", "key", "python"],
)
def test_hostile_texts_are_rejected(text: str) -> None:
    parsed = parse_manifest(f"{text}\n---\n{GOOD}", ORIGIN, (), NOW)
    assert [pod.metadata.name for pod in parsed.pods] == ["good-node-1"]
    examine(parsed)


async def test_mutated_files_affect_no_valid_file(tmp_path: Path) -> None:
    dice = random.Random(7)
    (tmp_path / "good.yaml").write_text(GOOD)
    for number in range(200):
        (tmp_path / f"{number}.yaml").write_text(damaged(SHORT, dice), errors="surrogatepass")
    source = FileSource(tmp_path, "node-1", "file", lambda: None, FakeEventRecorder())
    await source.read()
    pods, _ = merge_sources(source.source_pods)
    assert "good-node-1" in {pod.metadata.name for pod in pods.values()}
    assert source.synced


async def test_local_api_answers_every_mutated_body(tmp_path: Path) -> None:
    dice = random.Random(7)
    rich = msgspec.json.encode(yaml.safe_load(RICH))
    source = LocalApiSource(tmp_path / "s", tmp_path / "submitted", "node-1", lambda: None, FakeEventRecorder())
    running = asyncio.create_task(source.run())
    try:
        async with (
            asyncio.timeout(60),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "s"))) as http,
        ):
            while not (tmp_path / "s").exists():
                await asyncio.sleep(0.002)
            for number in range(300):
                body = json.dumps(mutated(rich, dice)) if number % 2 else damaged(SHORT, dice)
                async with http.post("http://n/pods", data=body.encode(errors="surrogatepass")) as answer:
                    answer_body = await answer.json()
                    assert answer.status in {201, 400, 409, 422}, answer_body
                    if answer.status == 422:
                        assert all(cause["field"] for cause in answer_body["details"]["causes"])
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
