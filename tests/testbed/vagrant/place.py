"""A place in which Vagrant runs machines by libvirt: own network, processes and files of libvirt, which end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
BOX = ROOT / ".vagrant-box" / "podlane.box"
BOX_NAME = "debian/bookworm64"
"""The name that the Vagrantfile has; this box takes the place of the public one."""

PROGRAMS = ("vagrant", "libvirtd", "virtlogd", "qemu-system-x86_64", "dnsmasq", "rsync", "unshare", "bsdtar")
DIRECTORIES = ("/run/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")

LIBVIRT_SETTINGS = """\
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
"""
START = """\
set -eu
ip link set lo up
for folder in {directories}; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
mkdir -p /var/lib/libvirt/images
mount --bind {settings} /etc/libvirt/qemu.conf
sysctl -qw net.ipv4.ip_forward=1
virtlogd -d
libvirtd -d
touch {ready}
exec sleep infinity
"""


def missing() -> str:
    """Return what this host lacks; empty if it lacks nothing."""
    lacks = [name for name in PROGRAMS if shutil.which(name) is None]
    lacks += [] if BOX.exists() else [str(BOX)]
    lacks += [] if os.geteuid() == 0 else ["root"]
    return f"not here: {', '.join(lacks)} (`make vagrant` installs it)" if lacks else ""


class Place:
    """Runs programs in the place, in the directory of a clone."""

    def __init__(self, root: Path, leader: int) -> None:
        self._leader = leader
        self.clone = root / "clone"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "VAGRANT_HOME": str(root / "home"),
            "VAGRANT_CHECKPOINT_DISABLE": "1",
            "VAGRANT_DEFAULT_PROVIDER": "libvirt",
            "NODES": "1",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, script: str, *, seconds: float = 3600.0, check: bool = True) -> str:
        """Run a script, show what it prints, and return it."""
        command = ["nsenter", "-t", str(self._leader), "-m", "-n", "-p", "bash", "-c", f"cd {self.clone}; {script}"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._environment
        ) as process:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                if "Progress: " not in line:
                    sys.stdout.write(line)
                    printed.append(line)
            code = process.wait(seconds)
        assert not check or code == 0, f"{script}: exit code {code}\n{''.join(printed[-40:])}"
        return "".join(printed)


@contextmanager
def running_place(root: Path) -> Iterator[Place]:
    """Start libvirt in namespaces of its own, with the box and a clone."""
    settings, ready = root / "qemu.conf", root / "ready"
    settings.write_text(LIBVIRT_SETTINGS)
    script = START.format(directories=" ".join(DIRECTORIES), settings=settings, ready=ready)
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script]
    with subprocess.Popen(command) as holder:
        try:
            wait_until(ready.exists, "libvirt runs", 60)
            children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            place = Place(root, int(children[0]))
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
            for name in filter(None, listed.decode().split("\0")):
                if (ROOT / name).is_file():
                    target = place.clone / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, target)
            place.run(f"vagrant box add --provider libvirt --name {BOX_NAME} {BOX}")
            yield place
        finally:
            holder.kill()
