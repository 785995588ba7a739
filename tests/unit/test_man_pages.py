"""The man pages: each command has one, groff accepts it, and it has what the command accepts."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from cli.command import EXIT_CODES
from man.__main__ import pages, write
from sdn.config import Settings

ROOT = Path(__file__).resolve().parents[2]


def rendered(page: str) -> str:
    """Return a page as man prints it, without emphasis and line breaks. Warnings of groff are failures."""
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-c", "-rLL=200n"], input=page, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return " ".join(re.sub(".\b", "", done.stdout).replace("\N{HYPHEN}", "-").split())


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    all_pages = pages()
    return {page.name: rendered(page.text(all_pages)) for page in all_pages}


def test_every_command_has_a_page(texts: dict[str, str], tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = {Path(file).name for file in settings["tool"]["setuptools"]["script-files"]}
    scripts |= set(settings["project"]["scripts"])
    assert set(texts) == scripts
    written = write(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in written) == [
        "man1/podlane.1.gz",
        *(f"man8/{name}.8.gz" for name in sorted(scripts - {"podlane"})),
    ]
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in write(tmp_path)] == before


def test_the_page_of_podlane_has_commands_options_and_exit_codes(texts: dict[str, str]) -> None:
    page = texts["podlane"]
    assert "podlane - administration of a Podlane cluster" in page
    for words in ("podlane network trace", "podlane lab kubeconfig", "--overwrite", "KUBECONFIG", "podlane-sdn(8)"):
        assert words in page
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in page


def test_the_page_of_a_daemon_has_its_settings(texts: dict[str, str]) -> None:
    page = texts["podlane-sdn"]
    assert "/etc/podlane/sdn.yaml the settings" in page
    for name in Settings.__struct_fields__:
        assert f"--{name.replace('_', '-')} VALUE" in page


def test_exit_codes_are_documented() -> None:
    table = (ROOT / "docs" / "operations" / "podlane.md").read_text()
    documented = {int(code): text for code, text in re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE)}
    assert documented == EXIT_CODES
