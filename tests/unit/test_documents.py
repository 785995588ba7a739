"""Files, folders and links that the documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")],
)
PACKAGES = (
    "api",
    "bench",
    "cli",
    "debian",
    "lab",
    "master",
    "nameserver",
    "node_agent",
    "reconcile",
    "sdn",
    "streams",
    "tests",
)
FOLDERS = (*PACKAGES, "docs", "systemd", "vagrant")
SOURCES = frozenset(
    f"/{path.relative_to(ROOT)}" for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()
)
PYTHON_FILE = re.compile(r"(?<![\w/.*-])[\w/]+\.py\b")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)]+)\)")


def is_source(name: str) -> bool:
    """Return True if a file of this repository has this path, or a path that ends with it."""
    return any(path.endswith(f"/{name}") for path in SOURCES)


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_python_files_named_in_a_document_exist(document: Path) -> None:
    assert [name for name in PYTHON_FILE.findall(document.read_text()) if not is_source(name)] == []


def test_paths_named_in_a_document_exist(document: Path) -> None:
    assert [name for name in PATH.findall(document.read_text()) if not (ROOT / name).exists()] == []


def test_each_architecture_decision_has_the_number_of_its_file_alone() -> None:
    files = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [int(file.name.partition("-")[0]) for file in files]
    assert len(set(numbers)) == len(numbers), [file.name for file in files]
    headings = [file.read_text().partition("\n")[0] for file in files]
    assert [heading.partition(".")[0] for heading in headings] == [f"# {number}" for number in numbers]


def test_links_of_a_document_lead_to_files(document: Path) -> None:
    targets = (target for target in LINK.findall(document.read_text()) if "://" not in target)
    assert [target for target in targets if not (document.parent / target).exists()] == []


def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, as the pages of a repository have them."""
    headings = (line.lstrip("#").strip().lower() for line in document.read_text().splitlines() if line[:1] == "#")
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def test_links_of_a_document_lead_to_headings(document: Path) -> None:
    targets = ANCHOR.findall(document.read_text())
    files = [(document.parent / name if name else document, anchor) for name, anchor in targets if "://" not in name]
    assert [anchor for file, anchor in files if file.suffix == ".md" and anchor not in anchors(file)] == []


def test_there_are_links_to_headings() -> None:
    """The control of the test before this one."""
    assert "by-symptom" in anchors(ROOT / "docs" / "operations" / "troubleshooting.md")
    assert sum(len(ANCHOR.findall(path.read_text())) for path in DOCUMENTS) > 30
