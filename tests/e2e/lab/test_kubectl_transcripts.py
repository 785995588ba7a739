"""The transcripts of `transcripts/`, by every kubectl on this machine, against a real master.

The oldest and the newest kubectl play every section. A version between them plays the sections that name versions,
and shares the other sections with the rest of those between: nearly all of their requests are the same.
`PODLANE_KUBECTL=all` lets every version play every section.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.testbed.apiserver.process import ApiServer
from tests.testbed.apiserver.sync_client import SyncClient
from tests.testbed.kubectl import ALL_PROGRAMS, OLDEST_AND_NEWEST, version_of
from tests.testbed.lab.cluster import Cluster
from tests.testbed.lab.transcript import Section, Terminal, sections

FOLDER = Path(__file__).with_name("transcripts")

AT_ONCE = 2
"""Sections that are played at once. kubectl gives up a TLS handshake after 10 s, which six of them exceed on two cores
while other tests start labs beside.
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api_server = ApiServer(tmp_path_factory.mktemp("master"))
    api_server.start()
    yield api_server
    assert api_server.stop() == 0


def played(program: str, kubeconfig: Path, root: Path, folder: Path, node: str = "") -> list[str]:
    """Return the differences in all sections of a folder."""
    text = "\n".join(file.read_text() for file in sorted(folder.glob("*.txt"))).replace("NODE", node or "NODE")
    parsed = assigned(program, text)
    assert parsed
    with ThreadPoolExecutor(AT_ONCE) as threads:
        reported = threads.map(
            lambda pair: in_its_project(program, kubeconfig, root, f"{folder.name}-{pair[0]}", pair[1]),
            enumerate(parsed),
        )
        return [text for section in reported for text in section]


def assigned(program: str, text: str) -> list[Section]:
    """Return the sections that a version of kubectl plays."""
    parsed = sections(text, version_of(program))
    between = [other for other in ALL_PROGRAMS if other not in OLDEST_AND_NEWEST]
    if program not in between or os.environ.get("PODLANE_KUBECTL") == "all":
        return parsed
    share = between.index(program)
    return [
        section for number, section in enumerate(parsed) if section.names_versions or number % len(between) == share
    ]


def in_its_project(program: str, kubeconfig: Path, root: Path, name: str, section: Section) -> list[str]:
    """Play a section in a new project, which the kubeconfig names."""
    project = f"p{version_of(program)[1]}-{name}"
    directory = root / project
    shutil.copytree(FOLDER / "files", directory)
    known = yaml.safe_load(kubeconfig.read_text())
    known["contexts"][0]["context"]["namespace"] = project
    (directory / "kubeconfig").write_text(json.dumps(known))
    own = {"HOME": str(root), "KUBECONFIG": str(directory / "kubeconfig"), "EDITOR": "false"}
    environment = {**os.environ, **own}

    client = SyncClient(kubeconfig)
    # Without the label, kubectl prints warnings about pods that name no security context.
    unlabelled = 'labels: {security.openshift.io/scc.podSecurityLabelSync: "false"}'
    client.apply(f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {project}, {unlabelled}}}\n")
    try:
        return Terminal(program, directory, environment).play(section, project)
    finally:
        client.delete(f"/api/v1/namespaces/{project}")


@pytest.mark.parametrize("program", ALL_PROGRAMS, ids=[Path(program).name for program in ALL_PROGRAMS])
def test_kubectl_commands_give_the_reference_outcome(program: str, server: ApiServer, tmp_path: Path) -> None:
    wrong = played(program, server.kubeconfig, tmp_path, FOLDER)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("program", ALL_PROGRAMS, ids=[Path(program).name for program in ALL_PROGRAMS])
def test_kubectl_commands_on_running_pods_give_the_reference_outcome(
    program: str, cluster: Cluster, tmp_path: Path
) -> None:
    wrong = played(program, cluster.lab.kubeconfig, tmp_path, FOLDER / "lab")
    assert not wrong, "\n".join(wrong)


def test_kubectl_drain_gives_the_reference_outcome(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.lab.nodes[1].name
    wrong = played(ALL_PROGRAMS[-1], cluster.lab.kubeconfig, tmp_path, FOLDER / "node", node)
    assert not wrong, "\n".join(wrong)


SAMPLE = """\
## a section
; a remark
$ kubectl one two
one   two
$ kubectl one
wanted
! more
= 1
$ kubectl a PROJECT z
a ... z
@1.30- $ kubectl old
@1.31+ $ kubectl new
...
"""


def test_transcript_reports_a_row_with_another_outcome(tmp_path: Path) -> None:
    (section,) = sections(SAMPLE, (1, 31))
    assert [command.words for command in section.commands] == [
        "kubectl one two",
        "kubectl one",
        "kubectl a PROJECT z",
        "kubectl new",
    ]
    assert section.names_versions
    reported = Terminal("echo", tmp_path, {}).play(section, "mine")
    assert reported == [
        "$ kubectl one\n  must come:\n    wanted\n    ! more\n    = 1\n  came:\n    one\n    = 0",
    ]
