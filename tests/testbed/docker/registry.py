"""Debian's docker-registry with a password, on a port of loopback."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.docker.daemon import Dockerd

USER, PASSWORD = "tester", "sesame"
BCRYPT = "$2b$04$Vy/Iiy9YxA130p.qCrcJH./LUiDAWvdObqd.vCxou.B../OalK5OC"
"""Of the password."""

DEADLINE_SECONDS = 30.0


@contextmanager
def running_registry(root: Path) -> Iterator[str]:
    """Run a registry that stores its images in a directory, until the end of the block. Yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (root / "htpasswd").write_text(f"{USER}:{BCRYPT}\n")
    (root / "config.yml").write_text(
        f"""\
version: 0.1
storage: {{filesystem: {{rootdirectory: {root}/images}}}}
http: {{addr: "{address}"}}
auth: {{htpasswd: {{realm: podlane, path: {root}/htpasswd}}}}
"""
    )
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(root / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not _answers(address):
            assert process.poll() is None, (root / "log").read_text()
            assert time.monotonic() < deadline, (root / "log").read_text()
            time.sleep(0.02)
        yield address
    finally:
        process.terminate()
        process.wait()


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as ours:
        return ours.connect_ex((host, int(port))) == 0


SCHEMA = "application/vnd.docker.distribution.manifest.v2+json"


TYPES = {
    "config": "application/vnd.docker.container.image.v1+json",
    "layer": "application/vnd.docker.image.rootfs.diff.tar",
}


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def registry_blobs(dockerd: Dockerd, image: str) -> tuple[dict[str, bytes], bytes]:
    """Return the blobs of an image by digest, and its manifest, as a registry serves them."""
    client = dockerd.client()
    with tarfile.open(fileobj=io.BytesIO(b"".join(client.get_image(image)))) as archive:

        def content(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        (image_manifest,) = json.loads(content("manifest.json"))
        parts = [
            ("config", content(image_manifest["Config"])),
            *(("layer", content(layer)) for layer in image_manifest["Layers"]),
        ]
    client.close()
    config, *layers = ({"mediaType": TYPES[kind], "size": len(data), "digest": digest(data)} for kind, data in parts)
    manifest = json.dumps({"schemaVersion": 2, "mediaType": SCHEMA, "config": config, "layers": layers}).encode()
    return {digest(data): data for _, data in parts}, manifest
