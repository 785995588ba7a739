"""The commands that README.md and docs/operations show, as they are written there.

A block of code without a language holds commands for bash; every other block names its language (`text` for output).
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = "README.md"
DOCUMENTS = (README, *sorted(f"docs/operations/{path.name}" for path in (ROOT / "docs" / "operations").glob("*.md")))

HEADING = re.compile(r"#+ (.*)")
FENCE = re.compile(r" *```(\w*)$")
HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?")
COMMENT = re.compile(r"\s+# .*")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a document, which may have several lines. `heading` is the nearest one above it."""

    document: str
    heading: str
    text: str

    @property
    def name(self) -> str:
        """The first line without its comment, by which the command is known in lists of tests."""
        return COMMENT.sub("", self.text.splitlines()[0])


def blocks(document: str) -> Iterator[tuple[str, str, str]]:
    """Yield the heading, the language and the text of each block of code."""
    heading, language, lines = "", None, list[str]()
    for line in (ROOT / document).read_text().splitlines():
        fence = FENCE.match(line)
        if language is not None and fence:
            yield heading, language, textwrap.dedent("\n".join(lines))
            language = None
        elif language is not None:
            lines.append(line)
        elif fence:
            language, lines = fence.group(1), []
        elif title := HEADING.match(line):
            heading = title.group(1)


def commands(document: str, heading: str = "") -> list[Command]:
    """Return the commands of a document, or those below one heading."""
    return [
        Command(document, title, text)
        for title, language, block in blocks(document)
        if not language and heading in ("", title)
        for text in split(block)
    ]


def split(block: str) -> Iterator[str]:
    """Yield the commands of a block: lines, with those that a backslash or a here-document continues."""
    lines = iter(block.splitlines())
    for line in lines:
        command = [line]
        while command[-1].endswith("\\"):
            command.append(next(lines))
        if "<<<" not in line and (end := HERE_DOCUMENT.search(line)):
            while command[-1] != end.group(1):
                command.append(next(lines))
        elif "<<<" not in line:
            while _has_open_quote("\n".join(command)):
                command.append(next(lines))
        if line.strip() and not line.startswith("#"):
            yield "\n".join(command)


def _has_open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


# --- where each section is run ----------------------------------------------------------------------------------------

FIRST_LOGIN = "contract/apiserver/test_first_login.py"
MASTER = "contract/apiserver/test_documents.py"
LAB = "e2e/lab/test_readme.py"
NEWCOMER = "hosts/test_newcomer.py"
INSTALLATION = "hosts/test_newcomer.py::test_steps_of_installation"
PACKAGES = "hosts/test_newcomer.py::test_steps_of_packages"
VAGRANT = "vm/test_vagrant_up.py"

UPLINK = ("docs/operations/network.md", "The datapath in user space")
HOSTS = "testbed/hosts/site.py"
"""Runs its sections before all tests of its tier."""

RUN_BY: Mapping[tuple[str, str], tuple[str, ...]] = {
    (README, "Try it: two commands"): (NEWCOMER,),
    (README, "As the administrator"): (NEWCOMER,),
    (README, "As a user of a project"): (LAB, NEWCOMER),
    (README, "Images and pages"): (NEWCOMER,),
    ("docs/operations/install.md", "Packages"): (PACKAGES,),
    ("docs/operations/install.md", "The first login"): (FIRST_LOGIN,),
    ("docs/operations/install.md", "The master"): (INSTALLATION,),
    ("docs/operations/install.md", "A node"): (INSTALLATION,),
    UPLINK: (HOSTS,),
    ("docs/operations/audit.md", "Audit log"): (MASTER,),
    ("docs/operations/backup.md", "Back up the master"): (MASTER,),
    ("docs/operations/backup.md", "Restore the master"): (MASTER,),
    ("docs/operations/certificates.md", "Require approval"): (MASTER,),
    ("docs/operations/monitoring.md", "Set it up"): (MASTER,),
    ("docs/operations/oauth.md", "Clients"): (MASTER,),
    ("docs/operations/pod-security.md", "Security context constraints"): (MASTER,),
    ("docs/operations/projects.md", "Requests"): (MASTER,),
    ("docs/operations/rbac.md", "kubectl debug"): (MASTER,),
    ("docs/operations/upgrade.md", "Which versions work together"): (MASTER,),
    ("docs/operations/upgrade.md", "The master"): (MASTER,),
    ("docs/operations/users.md", "HTPasswd"): (MASTER,),
    ("docs/operations/vagrant.md", "From nothing to a pod"): (VAGRANT,),
    ("docs/operations/vagrant.md", "Further nodes"): (VAGRANT,),
}
"""(document, heading) → the tests that run all commands below the heading, but for those of `NOT_RUN`."""

NOT_RUN: Mapping[str, str] = {
    "echo '* 10.245.2.0/24' >> /etc/vbox/networks.conf": "changes VirtualBox, which no test has",
    "kubectl create deployment web --image=nginx:1.27 --replicas=2": "an image of the Internet",
    "kubectl rollout status deployment/web --timeout=300s": "an image of the Internet",
    "podlane lab load app:v2 saved.tar": "needs images of the reader; tests/e2e/lab/test_uplink.py loads both",
    "make test": "runs all tests, this one too",
    "make deb": "minutes; tests/testbed/hosts/repository.py runs its script, and tests/hosts installs the result",
    "make apt-repo": "as `make deb`",
    "apt-get install --allow-downgrades podlane=VERSION podlane-node=VERSION": (
        "needs versions; hosts/test_package_upgrade.py runs it with two"
    ),
    "systemctl restart podlane-sdn podlane-node-agent": "of nodes; tests/hosts restarts their daemons under traffic",
    "podlane join https://10.245.2.2:8443 --token abcdef.0123456789abcdef --ca-hash sha256:7c2e...": (
        "an example of the line that `podlane node token` prints, which hosts/test_newcomer.py runs"
    ),
    "podlane image load app:v2 saved.tar": "needs images of the reader; tests/e2e/lab/test_image_load.py has some",
    "podlane image load app:v2 --node node-2": "needs images of the reader; tests/e2e/lab/test_image_load.py has some",
}
"""The name of a command → why no test runs it as it stands."""


REFUSALS = ("Forbidden", "dropped")
"""The first words of comments on commands that fail on purpose. Their output has the word."""


def refusal(command: Command) -> str:
    """Return the word that the output of a command has if it has to fail; empty if it has to succeed."""
    return next((word for word in REFUSALS if f"# {word}" in command.text), "")


def sections(test: str) -> list[tuple[str, str]]:
    """Return the sections that a test has to run, in the order of `RUN_BY`."""
    return [section for section, tests in RUN_BY.items() if test in tests]


def scripts(*chosen: tuple[str, str]) -> Iterator[tuple[Command, str]]:
    """Yield the commands of sections, each with a script that has the exports and `cd` before it, as in one shell."""
    before: list[str] = []
    for document, heading in chosen:
        for command in runnable(document, heading):
            if command.text.startswith(("export ", "cd ")):
                before.append(command.text)
            else:
                yield command, "\n".join((*before, command.text))


def runnable(document: str, heading: str) -> list[Command]:
    """Return the commands of a section that tests run."""
    return [command for command in commands(document, heading) if command.name not in NOT_RUN]
