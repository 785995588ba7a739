"""A virtual machine with its own kernel whose root is this host's, read-only: nothing is installed.

QEMU without hardware support runs Debian's cloud kernel. The host's `/` is mounted read-only by virtiofs, below a file
system in memory. systemd runs one unit with one script, and its output comes out of the serial port.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / ".vm"
"""Where `make vm` unpacks Debian's linux-image-cloud-amd64."""

VIRTIOFSD = Path("/usr/lib/qemu/virtiofsd")
MODULES = (
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "fs/fuse/fuse",
    "fs/fuse/virtiofs",
    "fs/overlayfs/overlay",
)
"""In the order in which they need one another."""

MEGABYTES = 3000
ENDED = re.compile(r"podlane-script ended with (\d+)")

INIT = """\
#!/bin/busybox sh
export PATH=/bin
for name in proc sysfs devtmpfs; do busybox mkdir -p /$name; busybox mount -t $name $name /$name; done
for module in {modules}; do busybox insmod /$module.ko || exit 1; done
busybox mkdir -p /lower /memory /new /saved
busybox mount -t virtiofs -o ro host /lower
busybox mount -t tmpfs tmpfs /memory
busybox mkdir /memory/upper /memory/work
busybox cp -a /files/. /memory/upper/
busybox mount -t overlay -o lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work overlay /new
busybox rm -f /new/.dockerenv
busybox mount --bind /new{source} /saved
busybox mount -t tmpfs tmpfs /new/tmp
busybox mkdir -p /new{source} /new/proc /new/sys /new/dev
busybox mount --move /saved /new{source}
busybox mount --move /proc /new/proc
busybox mount --move /sysfs /new/sys
busybox mount --move /devtmpfs /new/dev
exec busybox switch_root /new /lib/systemd/systemd
"""

TARGET = """\
[Unit]
DefaultDependencies=no
Requires=podlane-script.service
AllowIsolate=yes
"""
SERVICE = """\
[Unit]
DefaultDependencies=no
Requires=dbus.service
After=dbus.service
[Service]
Type=oneshot
TimeoutStartSec=infinity
Environment=HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
StandardOutput=file:/dev/console
StandardError=inherit
ExecStart=/bin/sh -c 'sh /podlane-script; echo podlane-script ended with $$?; exec systemctl poweroff -ff'
"""
DBUS_SOCKET = """\
[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
"""
DBUS_SERVICE = """\
[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
Type=notify
ExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile --systemd-activation
StandardOutput=null
"""
UNITS = {
    "podlane-script.target": TARGET,
    "podlane-script.service": SERVICE,
    "dbus.socket": DBUS_SOCKET,
    "dbus.service": DBUS_SERVICE,
}


def missing() -> str:
    """Return the programs and files that this host lacks for a virtual machine; empty if it lacks none."""
    programs = ("qemu-system-x86_64", "dbus-daemon", "busybox")
    lacks = [name for name in programs if shutil.which(name) is None]
    lacks += [str(path) for path in (VIRTIOFSD, Path("/lib/systemd/systemd")) if not path.exists()]
    lacks += [] if _kernel() else [f"a kernel in {KERNELS}"]
    return f"not here: {', '.join(lacks)} (`make vm` installs it)" if lacks else ""


def run(script: str, cgroup_version: int, seconds: float) -> tuple[int, str]:
    """Run a shell script as root in a new machine. Return its exit code and its output, which is also printed
    meanwhile.
    """
    _compile_modules()
    with tempfile.TemporaryDirectory(prefix="podlane-vm-") as folder:
        where = Path(folder)
        (where / "initrd").write_bytes(_initrd(script))
        shared = _share(where / "host.sock", where / "virtiofsd.log")
        try:
            return _boot(where, cgroup_version, seconds)
        finally:
            shared.terminate()
            shared.wait()


def _compile_modules() -> None:
    """Store the bytecode of all modules. In the machine, each process would compile them again, for many seconds."""
    packages = sorted(str(found.parent) for found in ROOT.glob("*/__init__.py"))
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], check=True)


def _kernel() -> str:
    return max(glob.glob(f"{KERNELS}/boot/vmlinuz-*"), default="")


def _share(socket: Path, log: Path) -> subprocess.Popen[bytes]:
    """Share the host's root by virtiofs. A descriptor stays open for every file that the machine has used."""
    options = ("source=/", "cache=always", "sandbox=chroot", "no_posix_lock")
    command = [str(VIRTIOFSD), f"--socket-path={socket}", *(word for option in options for word in ("-o", option))]
    most = os.sysconf("SC_OPEN_MAX")
    with log.open("wb") as output:
        process = subprocess.Popen([*command, f"--rlimit-nofile={most}"], stdout=output, stderr=output)
    while not socket.exists():
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return process


def _boot(where: Path, cgroup_version: int, seconds: float) -> tuple[int, str]:
    words = (
        "console=ttyS0 quiet mitigations=off nokaslr apparmor=0 selinux=0 panic=-1 systemd.unit=podlane-script.target",
        f"systemd.unified_cgroup_hierarchy={cgroup_version - 1} systemd.show_status=0 systemd.log_target=null",
    )
    command = [
        *("qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-machine", "q35,memory-backend=memory", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"),
        *("-smp", str(os.cpu_count() or 1), "-m", f"{MEGABYTES}M"),
        *("-object", f"memory-backend-memfd,id=memory,size={MEGABYTES}M,share=on"),
        *("-chardev", f"socket,id=host,path={where}/host.sock", "-device", "vhost-user-fs-pci,chardev=host,tag=host"),
        *("-kernel", _kernel(), "-initrd", f"{where}/initrd", "-append", " ".join(words), "-serial", "stdio"),
    ]
    output = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as machine:
        assert machine.stdout is not None
        patience = threading.Timer(seconds, machine.kill)
        patience.start()
        try:
            for line in machine.stdout:
                output.append(line.rstrip() + "\n")
                sys.stdout.write(output[-1])
        finally:
            patience.cancel()
            machine.kill()
    text = "".join(output)
    ended = ENDED.search(text)
    assert ended is not None, f"the machine did not come to the end of the script within {seconds:.0f} s:\n{text}"
    return int(ended[1]), text


def _initrd(script: str) -> bytes:
    kernel = Path(_kernel())
    modules = KERNELS / "lib" / "modules" / kernel.name.removeprefix("vmlinuz-") / "kernel"
    names = " ".join(Path(module).name for module in MODULES)
    files = {
        "init": INIT.format(modules=names, source=ROOT).encode(),
        "bin/busybox": Path(shutil.which("busybox") or "").read_bytes(),
        "files/etc/fstab": b"",
        "files/podlane-script": script.encode(),
        **{f"{Path(module).name}.ko": (modules / f"{module}.ko").read_bytes() for module in MODULES},
        **{f"files/etc/systemd/system/{name}": text.encode() for name, text in UNITS.items()},
    }
    folders = sorted({str(above) for name in files for above in Path(name).parents if str(above) != "."})
    rows = [_entry(name, 0o040755, b"") for name in folders]
    rows += [_entry(name, 0o100755, content) for name, content in files.items()]
    return gzip.compress(b"".join((*rows, _entry("TRAILER!!!", 0, b""))), compresslevel=1)


def _entry(name: str, mode: int, content: bytes) -> bytes:
    """Return a file of an archive in cpio's `newc` format (cpio(5))."""
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(text: bytes) -> bytes:
    return text + b"\0" * (-len(text) % 4)
