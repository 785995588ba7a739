"""Builds images from programs of this machine, so that no registry is needed."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import docker

PAUSE, TOOLBOX = "podlane/pause", "podlane/toolbox"
CATATONIT, BUSYBOX, CURL = Path("/usr/bin/catatonit"), Path("/bin/busybox"), Path("/usr/bin/curl")
BASH = Path("/bin/bash")
TERMINFO = tuple(
    Path("/lib/terminfo", name) for name in ("l/linux", "s/screen", "t/tmux", "x/xterm", "x/xterm-256color")
)
"""Descriptions of terminals, without which bash complains and edits no lines."""


def load(docker_socket: str) -> None:
    """Load both images into the Docker at a unix socket, unless it has them. Raises DockerException."""
    load_pause(docker_socket)
    _load(docker_socket, TOOLBOX, toolbox, ['CMD ["sh"]', "ENV PATH=/bin:/sbin:/usr/bin:/usr/sbin"])


def load_pause(docker_socket: str) -> None:
    """Load the image of sandboxes into the Docker at a unix socket, unless it has it. Raises DockerException."""
    _load(docker_socket, PAUSE, _pause, ['ENTRYPOINT ["/catatonit", "-P"]'])


def _load(docker_socket: str, name: str, root: Callable[[], bytes], changes: list[str]) -> None:
    client: Any = docker.APIClient(base_url=f"unix://{docker_socket}", version="1.41", timeout=60)
    try:
        if name not in {tag.partition(":")[0] for image in client.images() for tag in image["RepoTags"] or ()}:
            client.import_image_from_data(root(), repository=name, changes=changes)
    finally:
        client.close()


def _pause() -> bytes:
    with io.BytesIO() as image:
        with tarfile.open(fileobj=image, mode="w") as archive:
            archive.add(CATATONIT.resolve(), "catatonit")
        return image.getvalue()


@cache
def toolbox() -> bytes:
    """Return the root file system of the image podlane/toolbox as a tar archive.

    What of Debian's static busybox looks up names crashes, but for its nslookup; curl is for those who call by name.
    `kubectl exec -it POD -- bash` is what people type.
    """
    applets = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    with io.BytesIO() as image:
        with tarfile.open(fileobj=image, mode="w") as archive:
            for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var", 0o755)):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, mode
                archive.addfile(entry)
            archive.add(BUSYBOX.resolve(), "bin/busybox")
            for applet in applets:
                entry = tarfile.TarInfo(f"bin/{applet}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                if applet != "busybox":
                    archive.addfile(entry)
            programs = (CURL, BASH, *_libraries(CURL), *_libraries(BASH))
            for path in dict.fromkeys((*programs, *filter(Path.exists, TERMINFO))):
                archive.add(path.resolve(), str(path).lstrip("/"))
            _file(archive, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
            _file(archive, "etc/group", "root:x:0:\nnogroup:x:65534:\n")
        return image.getvalue()


def _libraries(program: Path) -> list[Path]:
    """Return the shared libraries of a program, and its dynamic linker (ldd(1))."""
    lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(word) for line in lines for word in line.split() if word.startswith("/")]


def _file(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), 0o644
    archive.addfile(entry, io.BytesIO(text.encode()))
