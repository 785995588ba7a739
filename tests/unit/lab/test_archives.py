"""What `podlane lab load`, `podlane lab build` and `podlane image load` accept as images, names and files."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from lab import archives, load
from lab.archives import check_images, is_pulled_always, is_reference, read_archive
from lab.process import LabError, Progress
from lab.topology import Lab, Site

DIGEST = "sha256:" + "ab" * 32
LAB = Lab(Site("podx", IPv4Network("10.245.9.0/24")), Path("/nowhere"), Path("/bin"), 2, "ovs-multitenant")


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that are run. The Docker of the machine has no image, that of nodes loads all."""
    commands: list[tuple[str, ...]] = []

    def run(*command: str, seconds: float = 0) -> str:
        commands.append(command)
        if "inspect" in command:
            raise LabError(f"docker image inspect: Error: No such image: {command[-1]}")
        return ""

    monkeypatch.setattr(archives, "run", run)
    monkeypatch.setattr(load, "run", run)
    return commands


def saved(file: Path, *names: str) -> Path:
    """Write an archive of `docker save` with a layer of some size."""
    members = {
        "layer.tar": b"x" * 20_000,
        "manifest.json": json.dumps([{"Config": "ab.json", "RepoTags": names, "Layers": ["layer.tar"]}]).encode(),
    }
    with tarfile.open(file, "w") as content:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            content.addfile(member, io.BytesIO(text))
    return file


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _: b"words\n" * 500, "not a tar archive; an archive of `docker save` is accepted"),
        (lambda whole: whole[:9000], "the archive is cut off; an archive of `docker save` is accepted"),
        (lambda whole: whole[:20_992], "has no image, or is cut off; an archive of `docker save` is accepted"),
        (lambda whole: gzip.compress(whole)[:-20], "the archive is cut off; an archive of `docker save` is accepted"),
    ],
)
def test_files_that_are_no_whole_archive_are_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], problem: str, docker: list[tuple[str, ...]]
) -> None:
    file = saved(tmp_path / "saved.tar", "app:v1")
    check_images([str(file)])
    assert read_archive(file).title == "app:v1"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(LabError) as raised:
        load.load(LAB, [str(file)], Progress())
    assert str(raised.value) == f"{file}: {problem}"
    assert docker == []


@pytest.mark.parametrize("word", ["./nope.tar", "nope.tar", "/nope", "../nope", "folder/nope.tar.gz"])
def test_a_file_that_does_not_exist_is_no_name_of_an_image(word: str, docker: list[tuple[str, ...]]) -> None:
    with pytest.raises(LabError, match=r"nope\S* does not exist; a file of `docker save`, or an image's name, is"):
        check_images([word])
    assert docker == []


def test_a_directory_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"cannot be read: Is a directory"):
        check_images([str(tmp_path)])


def test_nothing_is_loaded_if_one_image_does_not_exist(
    tmp_path: Path, docker: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path / "saved.tar", "app:v1", "other")
    with pytest.raises(LabError, match=r"nope:v1 is neither a file nor an image in .* \(No such image: nope:v1\)"):
        load.load(LAB, [str(file), "nope:v1"], Progress())
    assert not any("load" in command for command in docker)
    load.load(LAB, [str(file)], Progress())
    assert sum("load" in command for command in docker) == 2
    printed = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert printed[0].startswith("loading app:v1, other, ")
    assert sorted(printed[1:3]) == ["node-1 has app:v1, other", "node-2 has app:v1, other"]
    assert printed[3:] == ["pods with other need imagePullPolicy: IfNotPresent, or another tag than latest"]


@pytest.mark.parametrize(
    "name", ["app", "app:v1", "a/b_c/d-e:V1.x", "127.0.0.1:5000/app:v3", "Registry.example/app", "localhost:5000/a"]
)
def test_names_of_images_are_accepted(name: str) -> None:
    load.refuse_bad_name(name)
    assert is_reference(name)
    assert is_reference(f"{name}@{DIGEST}")


@pytest.mark.parametrize(
    "name", ["", "Bad:Name:x", "a:", ":v1", "a b", "-t", "a//b", "a/", f"a@{DIGEST}", "a" * 256, "a:" + "b" * 129, "é"]
)
def test_names_that_no_image_can_get_are_refused_before_docker_is_asked(name: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").touch()
    with pytest.raises(LabError) as raised:
        load.build(LAB, tmp_path, name, Progress())
    assert str(raised.value) == (
        f"{name!r} cannot be the name of an image; NAME:TAG is accepted, such as app:v1 or 127.0.0.1:5000/team/app:v1"
    )


def test_a_name_is_proposed_if_it_is_valid() -> None:
    for given, proposed in (
        ("App:V1", "app:V1"),
        ("team/App", "team/app"),
        ("host.test:5000/App:1", "host.test:5000/app:1"),
    ):
        with pytest.raises(LabError, match=rf"has no capital letters; {proposed} is accepted"):
            load.refuse_bad_name(given)


def test_words_that_are_no_image_are_not_given_to_docker(docker: list[tuple[str, ...]]) -> None:
    for word in ("", "-v", "a b", "Bad:Name:x"):
        with pytest.raises(LabError, match="is neither a file nor the name of an image"):
            check_images([word])
    assert docker == []


def test_pods_pull_images_without_a_tag_and_latest() -> None:
    assert all(map(is_pulled_always, ("a", "a:latest", "host:5000/a")))
    assert not any(map(is_pulled_always, ("a:v1", "host:5000/a:v1", f"a@{DIGEST}")))
