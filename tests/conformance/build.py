"""Builds Kubernetes and its conformance specs from Debian's source package, once, into `.conformance/`.

Nothing but Debian's archive is read: the sources carry all they need in `vendor/`. The system's own lists of packages
stay as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / ".conformance"
BINARIES = HOME / "bin"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
PACKAGES = ("golang-1.19-go", "golang-github-modern-go-reflect2-dev", "etcd-server", "dpkg-dev", "make")
IN_IMAGES = {"dig": "bind9-dnsutils", "nc.openbsd": "netcat-openbsd", "wget": "wget"}
"""Programs that images of the specs have, and Debian's packages with them."""
REFLECT = "github.com/modern-go/reflect2"
PACKAGED = Path("/usr/share/gocode/src")
TARGETS = (
    "cmd/kube-apiserver",
    "cmd/kube-controller-manager",
    "cmd/kube-scheduler",
    "cmd/kube-proxy",
    "cmd/kubelet",
    "test/images/agnhost",
    "test/images/nonewprivs",
    "vendor/github.com/onsi/ginkgo/ginkgo",
    "test/e2e/e2e.test",
)
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_COMPONENTS = ("kube-proxy", "kubelet")
SUITE = ("agnhost", "nonewprivs", "ginkgo", "e2e.test")


def missing(names: tuple[str, ...] = (*CONTROL_PLANE, *NODE_COMPONENTS, *SUITE)) -> tuple[str, ...]:
    """Return the programs that are not built yet, and the Debian programs that are not installed."""
    absent = [name for name in names if not (BINARIES / name).exists()]
    return (*absent, *(name for name in ("etcd", *IN_IMAGES) if not shutil.which(name)))


def build() -> None:
    """Build all missing programs. Raises CalledProcessError."""
    if not missing():
        _say(f"all is there, in {BINARIES}")
        return
    HOME.mkdir(exist_ok=True)
    packages = (*PACKAGES, *IN_IMAGES.values())
    _say(f"installing {', '.join(packages)}")
    _run("apt-get", "-qq", "update")
    _run("apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages)
    source = _source()
    BINARIES.mkdir(exist_ok=True)
    for target in TARGETS:
        if (BINARIES / Path(target).name).exists():
            continue
        _say(f"building {target}; the first one takes longest")
        _make(source, target)
        shutil.copy2(source / "_output" / "bin" / Path(target).name, BINARIES)


def _source() -> Path:
    """Return the unpacked sources with Debian's patches. They are fetched by a separate package list."""
    paths = sorted(HOME.glob("kubernetes-*/go.mod"))
    if paths:
        return paths[0].parent
    _say("fetching the sources")
    lists = HOME / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (lists / folder).mkdir(parents=True, exist_ok=True)
    (lists / "sources.list").write_text(_source_lists())
    options = {
        "Dir::Etc::sourcelist": lists / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists / "lists",
        "Dir::Cache": lists / "cache",
        "APT::Sandbox::User": "root",
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    _run("apt-get", "-qq", *flags, "update", cwd=HOME)
    _run("apt-get", "-qq", *flags, "source", "kubernetes", cwd=HOME)
    source = next(HOME.glob("kubernetes-*/go.mod")).parent
    _put_newer_reflection(source)
    return source


def _put_newer_reflection(source: Path) -> None:
    """Replace the module reflect2 in the sources. It reads maps as before Go 1.18, so the API server would crash."""
    for path in (source / "vendor" / REFLECT).glob("*.[gs]*"):
        path.unlink()
    for path in (PACKAGED / REFLECT).glob("*.[gs]*"):
        shutil.copy2(path, source / "vendor" / REFLECT)


def _source_lists() -> str:
    """Sources from where this machine has its packages."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = (line.split() for line in done.stdout.splitlines())
    debian = {tuple(fields) for fields in rows if len(fields) == 3 and fields[2] == "main" and "debian" in fields[0]}
    return "".join(f"deb-src [signed-by={KEYS}] {' '.join(fields)}\n" for fields in sorted(debian))


def _make(source: Path, target: str) -> None:
    """Build by Kubernetes' own makefile, which also generates code. GOPATH contains a link to the sources, as in
    debian/rules.
    """
    link = source / ".go" / "src" / "k8s.io" / "kubernetes"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to("../../..")
    environment = {
        **os.environ,
        "PATH": f"/usr/lib/go-1.19/bin:{os.environ['PATH']}",
        "GOPATH": str(source / ".go"),
        "GOCACHE": str(HOME / "cache"),
        "HOME": str(HOME),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-p=2",
    }
    with (HOME / "build.log").open("ab") as log:
        command = ["nice", "-n", "10", "make", f"WHAT={target}"]
        done = subprocess.run(command, cwd=source, env=environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        sys.exit(f"{target} could not be built; {HOME / 'build.log'} tells why")


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL)


def _say(words: str) -> None:
    sys.stdout.write(f"conformance: {words}\n")
    sys.stdout.flush()
