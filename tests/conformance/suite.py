"""Runs the node specs of Kubernetes against a node of ours that has joined a Kubernetes, and prints the result of each.

python -m tests.conformance.suite [FOCUS]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

from tests.conformance.build import BINARIES, HOME, build
from tests.conformance.kubernetes_master import StockNode
from tests.testbed.kubectl import ALL_PROGRAMS

FOCUS = r"\[NodeConformance\]|\[k8s\.io\]|\[sig-node\]|\[sig-storage\]"
NOT_ASKED = (
    *("Services", r"\[sig-apps\]", r"\[sig-api-machinery\]", "PodTemplates", "Kubectl"),  # not a node's
    *("In-tree Volumes", "CSI", "Driver:", "PersistentVolumes", "P[VC]+ Protection", "Volume limits", "Flexvolumes"),
    *(r"\[Feature", r"\[Disruptive\]", r"\[Flaky\]", r"\[Slow\]", "[Vv]sphere", "GC[EP]|GKE|gke", "Regional|Zone|AZ"),
    *(
        "SSH",
        "crictl",
        "NodeProblemDetector",
        "AppArmor",
        "Clean up pods",
        "Volume Placement",
        "Volumes NFS",
        "Provision",
        "Pod Disks",
    ),
    *("Volume metrics", "Mounted volume expand", "Detaching", "Volume Disk", "Ubernetes"),
    *("PrivilegedPod", "Mount propagation"),  # make a network device `dummy`, want `/` to be a shared mount
    "node-pod communication: udp",  # Busybox' `nc` has no UDP
)
"""Parts of the names of specs about what is no node's work, or about what neither the cluster nor this machine has."""
SERIAL = r"\[Serial\]"
AT_ONCE = 6
REPORT_SECONDS = 30.0
SHOWN = 300
STAMP = re.compile(r"^\w{3} +\d+ [\d:.]+: ")
NO_REASON = re.compile(r"/|<|\}|s: |_output|occurred|Unexpected error|Timed out after|Expected$")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a spec. `outcome` is passed or failed, `why` is the first line of the failure message."""

    spec: str
    outcome: str
    why: str = ""


def results(folder: Path) -> Iterator[Result]:
    """Yield the results of specs in the reports of a folder."""
    for path in sorted(folder.glob("junit_*.xml")):
        try:
            cases = Xml.parse(path).getroot().iter("testcase")
        except Xml.ParseError as error:
            say(f"{path} is not whole, its specs are left out: {error}")
            continue
        yield from (_result(case) for case in cases if case.find("skipped") is None)


def _result(case: Xml.Element) -> Result:
    failure = case.find("failure")
    if failure is None:
        return Result(case.attrib["name"], "passed")
    output = failure.text or ""
    lines = (STAMP.sub("", line).strip() for line in output.splitlines())
    why = next((line for line in lines if line and not NO_REASON.match(line)), "")
    return Result(case.attrib["name"], "failed", why[:SHOWN])


def names(folder: Path) -> frozenset[str]:
    """Return the names of all specs in the reports, including skipped ones."""
    actual = (Xml.parse(path).getroot().iter("testcase") for path in folder.glob("junit_*.xml"))
    return frozenset(case.attrib["name"] for cases in actual for case in cases)


@dataclass(frozen=True, slots=True)
class Asker:
    """The access to a cluster: a command prefix, and the administrator's kubeconfig. `nodes` is the number of nodes for
    the specs that need it.
    """

    command_prefix: tuple[str, ...]
    kubeconfig: Path
    kubectl: Path = Path(ALL_PROGRAMS[0])
    nodes: int = -1


def run_specs(asker: Asker, focus: str, not_asked: tuple[str, ...], reports: Path) -> None:
    """Run all matching specs, first the parallel ones, then the serial ones. The reports are in `reports`."""
    reports.mkdir(parents=True, exist_ok=True)
    skipped = "|".join(not_asked)
    for name, at_once, chosen, left_out in (
        ("parallel", AT_ONCE, focus, f"{skipped}|{SERIAL}"),
        ("serial", 1, f"({focus}).*{SERIAL}|{SERIAL}.*({focus})", skipped),
    ):
        log = reports / f"{name}.log"
        command = [
            *(*asker.command_prefix, "nice", str(BINARIES / "ginkgo"), f"-nodes={at_once}", "-noColor"),
            *(f"-focus={chosen}", f"-skip={left_out}", str(BINARIES / "e2e.test"), "--"),
            *(f"-kubeconfig={asker.kubeconfig}", f"-kubectl-path={asker.kubectl}", f"-num-nodes={asker.nodes}"),
            *("-provider=skeleton", "-disable-log-dump"),
            *(f"-report-dir={reports}", f"-report-prefix={name}-", "-node-os-distro=custom"),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _wait(process, log)
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    """Tell from time to time how far it is."""
    begin = reported = time.monotonic()
    while process.poll() is None:
        time.sleep(1)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            ends = Counter(re.findall(r'"msg":"(PASSED|FAILED) ', log.read_text(errors="replace")))
            say(f"{ends['PASSED']} passed, {ends['FAILED']} failed, after {reported - begin:.0f} s")


def table(rows: Iterable[Result]) -> str:
    """Return a table for people: the failed specs with reasons first, then the passed ones."""
    lines = []
    for result in sorted(rows, key=lambda result: (result.outcome, result.spec)):
        lines.append(f"{result.outcome:9}{result.spec}")
        if result.outcome == "failed":
            lines.append(f"{'':9}  {result.why}")
    return "\n".join(lines)


def main() -> int:
    """Returns 1 if a spec failed."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("focus", nargs="?", default=FOCUS, help="a regular expression for names of specs")
    focus = parser.parse_args().focus
    build()
    reports = HOME / "reports" / time.strftime("%Y%m%d-%H%M%S")
    with StockNode() as node:
        say("a real Kubernetes is up; our node joins it")
        node.agent()
        run_specs(Asker(node.command_prefix, node.root / "admin"), focus, NOT_ASKED, reports)
    rows = tuple(results(reports))
    sys.stdout.write(table(rows) + "\n")
    ends = Counter(result.outcome for result in rows)
    say(f"{ends['passed']} passed, {ends['failed']} failed ({reports})")
    return 1 if ends["failed"] or not ends["passed"] else 0


def say(words: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"conformance: {words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
