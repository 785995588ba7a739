"""Where pods come from besides the master: a directory of manifests, read again at every change and every 20 s."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace
from watchfiles import awatch

from api import manifest
from api.defaults import default
from api.objects import Pod
from api.references import static_problems
from api.schema import Problem, shown
from node_agent.containers import static_uid

log = logging.getLogger(__name__)

RELIST_SECONDS = 20.0
CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_HASH = "kubernetes.io/config.hash"


class Manifests:
    """The pods of a directory by UID. A file that cannot be read as pods keeps what it last said."""

    def __init__(self, directory: Path, node: str, on_change: Callable[[], None]) -> None:
        self.seen = False
        self._directory = directory
        self._node = node
        self._on_change = on_change
        self._files: dict[Path, tuple[str, tuple[Pod, ...]]] = {}

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Every pod of every file, by UID; of several with one name the first, in the order of files, counts."""
        return MappingProxyType({pod.metadata.uid: pod for _, pod in self._by_name().values()})

    def _by_name(self) -> dict[tuple[str, str], tuple[Path, Pod]]:
        found: dict[tuple[str, str], tuple[Path, Pod]] = {}
        for path, (_, pods) in self._files.items():
            for pod in pods:
                found.setdefault((pod.metadata.namespace, pod.metadata.name), (path, pod))
        return found

    def _tell_of_doubles(self) -> None:
        first = self._by_name()
        for path, (_, pods) in self._files.items():
            for pod in pods:
                holder, known = first[(pod.metadata.namespace, pod.metadata.name)]
                if known is not pod:
                    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                    places = {"pod": name, "file": path, "first": holder}
                    log.warning("a second pod of this name is left out", extra=places)

    async def run(self) -> None:
        """Read, and read again, until cancelled."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self.read()
        stop = asyncio.Event()
        changes = awatch(self._directory, stop_event=stop, recursive=False, debounce=100, step=20)
        waiting = asyncio.ensure_future(anext(changes))
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=RELIST_SECONDS)
                if done:
                    waiting.result()
                    waiting = asyncio.ensure_future(anext(changes))
                self.read()
        finally:
            stop.set()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting

    def read(self) -> None:
        """Take in every file as it is now."""
        before = self._files
        self._files = {path: self._read_file(path, before.get(path)) for path in self._paths()}
        if self._files != before or not self.seen:
            self.seen = True
            self._tell_of_doubles()
            self._on_change()

    def _paths(self) -> list[Path]:
        entries = sorted(self._directory.iterdir()) if self._directory.is_dir() else []
        return [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]

    def _read_file(self, path: Path, known: tuple[str, tuple[Pod, ...]] | None) -> tuple[str, tuple[Pod, ...]]:
        last = known[1] if known is not None else ()
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            log.warning("manifest cannot be read", extra={"file": path, "error": error})
            return "", last
        if known is not None and known[0] == text:
            return known
        pods: list[Pod] = []
        for document in manifest.read(text):
            problems = document.problems
            if isinstance(document.obj, Pod):
                problems = (*problems, *static_problems(document.obj))
                pods.append(static_pod(document.obj, self._node, str(path)))
            elif document.obj is not None:
                problems = (Problem("kind", shown(document.obj.KIND), '"Pod" is accepted here'),)
            if problems:
                log.warning(manifest.refusal(f"{path} document {document.number}", problems))
                return text, last
        return text, tuple(pods)


def static_pod(pod: Pod, node: str, path: str) -> Pod:
    """The pod of a manifest as it runs on this node: named after it, bound to it, with a UID of its own."""
    uid = pod.metadata.uid or static_uid(pod, node, path)
    annotations = {**pod.metadata.annotations, CONFIG_SOURCE: "file", CONFIG_HASH: uid}
    meta = replace(
        pod.metadata,
        name=f"{pod.metadata.name}-{node.lower()}",
        namespace=pod.metadata.namespace or "default",
        uid=uid,
        annotations=annotations,
    )
    return default(replace(pod, metadata=meta, spec=replace(pod.spec, node_name=node)))
