"""The images that the Kubernetes specs name. They are built locally under those names, without a registry."""

from __future__ import annotations

import datetime
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker

from api.pki import keys
from api.pki.pem import Subject
from lab import images
from tests.conformance.build import BINARIES

PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGNHOST = "k8s.gcr.io/e2e-test-images/agnhost:2.21"
NGINX, HTTPD = ("nginx:1.14-alpine", "nginx:1.15-alpine"), ("httpd:2.4.38-alpine", "httpd:2.4.39-alpine")
OLD = "gcr.io/kubernetes-e2e-test-images"
SETUID, EXECUTABLE, READABLE = 0o6755, 0o755, 0o644
PAGE = b"<html><body><h1>It works!</h1></body></html>\n"


def load(socket: str) -> None:
    """Put all of them into the Docker behind a unix socket. Raises DockerException."""
    images.load(socket)
    client: Any = docker.APIClient(base_url=f"unix://{socket}", version="1.41", timeout=120)
    try:
        for name, (content, changes) in _images().items():
            repository, _, tag = name.rpartition(":")
            client.import_image_from_data(content, repository=repository, tag=tag, changes=[PATH, *changes])
        client.tag(images.PAUSE, "k8s.gcr.io/pause", "3.2")
    finally:
        client.close()


def _images() -> Mapping[str, tuple[bytes, tuple[str, ...]]]:
    key, subject = keys.generate_key(), Subject("localhost", dns_names=("localhost",))
    certificate = keys.self_signed(key, subject, datetime.datetime.now(datetime.UTC))
    agnhost, busybox = (BINARIES / "agnhost").read_bytes(), _with({})
    nginx = _with({"www/index.html": (PAGE, READABLE)})
    httpd = _with({"usr/local/apache2/htdocs/index.html": (PAGE, READABLE), **_program("printenv")})
    return {
        AGNHOST: (
            _with(
                {
                    "agnhost": (agnhost, EXECUTABLE),
                    "agnhost-2": (agnhost, EXECUTABLE),
                    **_program("curl"),
                    **_program("dig"),
                    **_program("getent"),
                    **_program("nc.openbsd", "usr/local/bin/nc"),
                    **_program(
                        "wget", "bin/wget"
                    ),  # Busybox', which is linked statically, is ended by the libraries here
                    **_program("dash", "bin/sh"),  # Busybox' takes its own nc, which knows no UDP
                    "localhost.crt": (certificate, READABLE),
                    "localhost.key": (key, READABLE),
                }
            ),
            ('ENTRYPOINT ["/agnhost"]', 'CMD ["pause"]'),
        ),
        f"{OLD}/jessie-dnsutils:1.0": (_with({**_program("dig"), **_program("getent")}), ('CMD ["sh"]',)),
        "busybox:1.29": (busybox, ('CMD ["sh"]',)),
        f"{OLD}/nonroot:1.0": (busybox, ("USER 1234", 'CMD ["sleep", "1000000"]')),
        f"{OLD}/nonewprivs:1.0": (
            _with({"usr/local/bin/nnp": ((BINARIES / "nonewprivs").read_bytes(), SETUID)}),
            ('CMD ["nnp"]',),
        ),
        **dict.fromkeys(NGINX, (nginx, _serving("/www"))),
        **dict.fromkeys(HTTPD, (httpd, _serving("/usr/local/apache2/htdocs"))),
        **{
            f"{OLD}/{animal}:1.0": (
                _with({"www/data.json": (json.dumps({"image": f"{animal}.jpg"}).encode(), READABLE)}),
                _serving("/www"),
            )
            for animal in ("nautilus", "kitten")
        },
    }


def _serving(folder: str) -> tuple[str, ...]:
    return (f'CMD ["httpd", "-f", "-p", "80", "-h", "{folder}"]', "EXPOSE 80")


def _program(name: str, target_path: str = "") -> Mapping[str, tuple[bytes, int]]:
    """Return the files of a program of this machine with its libraries, under its own path or another one."""
    path = str(shutil.which(name))
    needs = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    files = {file: file for file in re.findall(r"(/\S+) \(0x", needs)} | {target_path or path: path}
    return {where.lstrip("/"): (Path(file).read_bytes(), EXECUTABLE) for where, file in files.items()}


def _with(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Busybox, and these files with their modes, also in place of its own."""
    with io.BytesIO(images.toolbox()) as base, io.BytesIO() as image:
        with tarfile.open(fileobj=base) as given, tarfile.open(fileobj=image, mode="w") as archive:
            for entry in given:
                if entry.name not in files:
                    archive.addfile(entry, given.extractfile(entry) if entry.isreg() else None)
            for name, (content, mode) in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        return image.getvalue()
