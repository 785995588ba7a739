"""Runs the network specs of Kubernetes against a lab of three nodes and prints the result of each.

python -m tests.conformance.network_suite [FOCUS]
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from ipaddress import IPv4Network
from pathlib import Path

from lab.down import bring_down
from lab.topology import Lab, Site
from lab.up import Options, lab_up
from tests.conformance import images
from tests.conformance.build import BINARIES, HOME, SUITE, build, missing
from tests.conformance.kubernetes_master import QUIET
from tests.conformance.suite import Asker, results, run_specs, say, table
from tests.testbed.kubectl import ALL_PROGRAMS

SITE = Site("podnet", IPv4Network("10.245.49.0/24"))
FOCUS = (
    r"\[sig-network\] (Services|Networking|DNS|EndpointSlice|Service endpoints|Conntrack|HostPort|Proxy)"
    "|Guestbook|in-cluster config|OIDC discovery"
)
NOT_ASKED = (
    (
        "[Ll]oad.?[Bb]alanc|LB health|ESIPP|GCE|configMap nameserver",
        "needs a cloud, or an add-on that is told in ConfigMaps",
    ),
    ("sctp|SCTP", "this kernel has no SCTP"),
    ("IPv6|DualStack", "the network is IPv4"),
    ("kube-proxy urls|iptables rules", "is about kube-proxy itself, which is not here"),
    ("OIDC discovery", "its program takes tokens signed with RSA only"),
    ("endpoints using hostNetwork", "the nodes of a lab have one host name"),
    ("large requests: udp", "begins with a datagram in fragments: on the netdev datapath services do not take these"),
    ("change the type and ports", "skips itself without a cloud"),
    (r"pod-Service\(hostNetwork\)", "skips itself"),
    ("configurable pod resolv.conf", "needs CoreDNS in an image"),
    ("Internet connection|IPerf|NoSNAT", "needs the Internet, or images of a registry"),
    (r"after restarting|\[Disruptive\]", "stops daemons through SSH"),
)
"""Parts of names of specs that cannot pass here, each with the reason."""


INTERNET_PORT = 18080
"""Some specs ask the Internet for a page before they begin, which they need for nothing else: here something answers
that takes all names for its own.
"""


PROXY = (f"http_proxy=http://127.0.0.1:{INTERNET_PORT}", "no_proxy=10.0.0.0/8,172.16.0.0/12")


@contextmanager
def network_lab() -> Iterator[Lab]:
    """Start a lab whose nodes have the images that specs name, and whose service accounts have token secrets, as in
    1.20.
    """
    state = Path(f"/tmp/{SITE.prefix}")
    bring_down(state, SITE)
    try:
        if lab_up(state, Options(3, "ovs-multitenant", internal=True), SITE):
            sys.exit("the lab is not as expected")
        lab = Lab(SITE, state, Path(sys.executable).parent, 3, "ovs-multitenant", internal=True)
        for node in lab.nodes:
            images.load(str(node.docker_socket))
        with _tokens(lab), _started(lab, "agnhost", "netexec", f"--http-port={INTERNET_PORT}"):
            yield lab
    finally:
        bring_down(state, SITE)


def _tokens(lab: Lab) -> AbstractContextManager[None]:
    keys = lab.root / "master" / "pki"
    return _started(
        lab,
        "kube-controller-manager",
        f"--kubeconfig={lab.kubeconfig}",
        "--controllers=serviceaccount-token",
        f"--service-account-private-key-file={keys}/sa.key",
        f"--root-ca-file={keys}/ca.crt",
        *QUIET,
    )


@contextmanager
def _started(lab: Lab, program: str, *flags: str) -> Iterator[None]:
    """Run a Kubernetes program in the master's namespace during the block."""
    command = (*_command_prefix(lab), str(BINARIES / program), *flags)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _command_prefix(lab: Lab) -> tuple[str, ...]:
    return ("nsenter", f"--net=/run/netns/{lab.site.master_namespace}")


def _kubectl(folder: Path) -> Path:
    """Copy kubectl under this name, because specs copy it into pods."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(ALL_PROGRAMS[0], folder / "kubectl"))


def main() -> int:
    """Returns 1 if a spec failed."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("focus", nargs="?", default=FOCUS, help="a regular expression for names of specs")
    focus = parser.parse_args().focus
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if missing(SUITE):
        build()
    reports = HOME / "reports" / time.strftime("network-%Y%m%d-%H%M%S")
    with network_lab() as lab:
        asker = Asker((*_command_prefix(lab), "env", *PROXY), lab.kubeconfig, _kubectl(reports), lab.size)
        run_specs(asker, focus, tuple(pattern for pattern, _ in NOT_ASKED), reports)
    rows = tuple(result for result in results(reports) if re.search(focus, result.spec))
    sys.stdout.write(table(rows) + "\n")
    ends = Counter(result.outcome for result in rows)
    say(f"{ends['passed']} passed, {ends['failed']} failed ({reports})")
    return 1 if ends["failed"] or not ends["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
