"""Debian machines with systemd as PID 1, in systemd-nspawn: own processes, packages and network, this host's kernel.

The root of a machine is an overlay over the directories below it; what it writes is in memory. A machine that is
switched off keeps its files. Its network namespace is made at each start, as a computer finds its cable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.testbed.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
BASE = ROOT / ".hosts" / "root"
"""The root file system of a bare Debian, which `make hosts` makes."""

WHEELS = ROOT / ".hosts" / "wheels"
"""The Python packages that Podlane needs, so that an installation does not load them each time."""

CGROUPS = Path("/sys/fs/cgroup")
BOOT_SECONDS = 60.0
COMMAND_SECONDS = 300.0
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8")
PROGRAMS = (
    *("systemd-nspawn", "dbus-daemon", "mmdebstrap", "ip", "nsenter", "ethtool", "kubectl", "docker"),
    *("dpkg-buildpackage", "dh", "apt-ftparchive", "gpg"),
)

INIT = """\
#!/bin/sh
for controller in /sys/fs/cgroup/*/; do mount -o remount,rw,bind "$controller" 2>/dev/null; done
exec /lib/systemd/systemd
"""
"""Makes the hierarchies of cgroup v1 writable, which systemd-nspawn leaves read-only."""

SYSTEM_CALLS = " ".join(
    (
        *("@clock", "@cpu-emulation", "@debug", "@module", "@obsolete", "@raw-io", "@reboot", "@swap"),
        *("bpf", "keyctl", "add_key", "request_key", "perf_event_open"),
    )
)


def missing() -> str:
    """Return what this host lacks for such machines; empty if it lacks nothing."""
    lacks = [name for name in PROGRAMS if shutil.which(name) is None]
    lacks += [str(path) for path in (BASE, WHEELS) if not path.is_dir()]
    lacks += [] if os.geteuid() == 0 else ["root"]
    return f"not here: {', '.join(lacks)} (`make hosts` installs it)" if lacks else ""


def call(*command: str | Path, check: bool = True) -> str:
    """Run a program of this host, and return its output. Its error output is part of the exception."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}{done.stdout}"
    return done.stdout


class Machine:
    """A machine. `lower` are the directories below its root, the uppermost first; `state` is its directory in memory.

    `connect` makes the network namespace of its name.
    """

    def __init__(self, name: str, state: Path, lower: Sequence[Path], connect: Callable[[], None]) -> None:
        self.name = name
        self.lower = tuple(lower)
        self.root, self.upper = state / "root", state / "upper"
        self._state = state
        self._connect = connect
        self._nspawn: subprocess.Popen[bytes] | None = None
        self.leader = 0
        """The process ID of its systemd on this host."""
        for folder in ("root", "upper", "work", "docker", "containerd"):
            (state / folder).mkdir(parents=True)
        layers = ":".join(str(folder) for folder in self.lower)
        options = f"lowerdir={layers},upperdir={self.upper},workdir={state / 'work'}"
        call("mount", "-t", "overlay", "overlay", "-o", options, self.root)
        self.write("podlane-testbed-init", INIT, 0o755)
        # Processes of pods get a SIGTERM when the machine is switched off, and this long to end.
        self.write("etc/systemd/system.conf.d/testbed.conf", "[Manager]\nDefaultTimeoutStopSec=10s\n")
        self.write("etc/hostname", f"{name.rpartition('_')[2]}\n")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the machine, which may be off."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def start(self) -> None:
        """Switch the machine on, and wait until it has booted."""
        self.begin_start()
        self.wait_booted()

    def begin_start(self) -> None:
        """Switch the machine on."""
        assert self._nspawn is None
        self._connect()
        groups = [self._make_cgroup(hierarchy) for hierarchy in _hierarchies()]
        command = (
            *("systemd-nspawn", "-q", "-D", str(self.root), "-M", self.name.replace("_", "-")),
            *("--register=no", "--keep-unit", "--kill-signal=SIGRTMIN+3", "--console=pipe", "--resolv-conf=off"),
            *(f"--network-namespace-path=/run/netns/{self.name}", "--capability=all", "--link-journal=no"),
            *(f"--system-call-filter={SYSTEM_CALLS}", "--bind=/dev/net/tun", "--timezone=off"),
            *(f"--bind={self._state}/{name}:/var/lib/{name}" for name in ("docker", "containerd")),
            "/podlane-testbed-init",
        )
        moves = " ".join(f"echo $$ > {group}/cgroup.procs;" for group in groups)
        with (self._state / "console").open("ab") as console:
            self._nspawn = subprocess.Popen(
                ["/bin/sh", "-c", f'{moves} exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
                start_new_session=True,
            )

    def _make_cgroup(self, hierarchy: Path) -> Path:
        group = hierarchy / self.name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists() and hierarchy != CGROUPS:
                (group / file).write_text((hierarchy / file).read_text())
        return group

    def wait_booted(self) -> None:
        """Wait until systemd has started everything."""
        nspawn = self._nspawn
        assert nspawn is not None

        def find_systemd() -> int:
            assert nspawn.poll() is None, (self._state / "console").read_text()
            return next((number for number in _children(nspawn.pid) if _name(number) == "systemd"), 0)

        def is_booted() -> bool:
            return self.run("systemctl", "is-system-running", check=False).strip() in {"running", "degraded"}

        self.leader = wait_until(find_systemd, f"{self.name} runs systemd", BOOT_SECONDS)
        wait_until(is_booted, f"{self.name} has booted", BOOT_SECONDS, pause=0.2)

    def run(self, *command: str, check: bool = True, online: bool = False) -> str:
        """Run a program as root, and return its output.

        `online` is with this host's network, for the downloads of an installation.
        """
        namespaces = ("-m", "-u", "-i", "-p", "-C", *(() if online else ("-n",)))
        done = subprocess.run(
            ["nsenter", "-t", str(self.leader), *namespaces, "env", "-i", *ENVIRONMENT, *command],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_SECONDS,
        )
        assert not check or done.returncode == 0, (
            f"{self.name}: {' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def shell(self, script: str, check: bool = True, *, online: bool = False) -> str:
        """Run a shell script as root, and return its output."""
        return self.run("sh", "-euc", script, check=check, online=online)

    def path(self, path: str) -> Path:
        """Return the path on this host of a file of the running machine, also on its own tmpfs."""
        return Path(f"/proc/{self.leader}/root", path.lstrip("/"))

    def main_pid(self, unit: str) -> int:
        """Return the process ID, on the machine, of a unit's main process; 0 if there is none."""
        return int(self.run("systemctl", "show", "-P", "MainPID", unit).strip())

    def is_active(self, unit: str) -> bool:
        """Return whether a unit is active."""
        return self.run("systemctl", "is-active", unit, check=False).strip() == "active"

    def reboot(self) -> None:
        """Restart the machine in an orderly way."""
        self.run("systemctl", "reboot", check=False)
        self._wait_off()
        self.start()

    def power_off(self) -> None:
        """Shut the machine down in an orderly way."""
        self.run("systemctl", "poweroff", check=False)
        self._wait_off()

    def cut_power(self) -> None:
        """End everything that runs on the machine at once."""
        assert self.leader, f"{self.name} is off"
        os.kill(self.leader, signal.SIGKILL)
        self._wait_off()

    def _wait_off(self) -> None:
        assert self._nspawn is not None
        try:
            self._nspawn.wait(BOOT_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(self.leader, signal.SIGKILL)
            self._nspawn.wait()
            raise TimeoutError(f"{self.name} is not off: {(self._state / 'console').read_text()[-2000:]}") from None
        self._nspawn, self.leader = None, 0
        call("ip", "netns", "del", self.name)
        for hierarchy in _hierarchies():
            _remove_cgroup(hierarchy / self.name)

    def remove(self) -> None:
        """End the machine, and delete what it wrote."""
        if self._nspawn is not None:
            for number in (*_children(self._nspawn.pid), self._nspawn.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self._wait_off()
        call("umount", self.root)


def _children(number: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def _name(number: int) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{number}/comm").read_text().strip()
    except OSError:
        return ""


def _hierarchies() -> list[Path]:
    """Return the mount points of all cgroup hierarchies: one with cgroup v2 alone, else one for each controller."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if not folder.is_symlink() and (folder / "cgroup.procs").exists()]


def _remove_cgroup(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        wait_until(lambda here=folder: _removed(Path(here)), f"{folder} is empty")  # type: ignore[misc]


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
