"""Which passwords fit an image."""

from __future__ import annotations

import base64

import msgspec
import pytest

from api.core.config import Secret
from node_agent.images.credentials import Credential, credentials_for_image, split_registry

HIM = Credential("him", "his")


def secret(place: str, key: str = ".dockerconfigjson", **auth: str) -> Secret:
    rows = {place: auth or HIM._asdict()}
    document = {"auths": rows} if key == ".dockerconfigjson" else rows
    return Secret(data={key: msgspec.json.encode(document)})


@pytest.mark.parametrize(
    ("place", "image", "fits"),
    [
        ("registry.example:5000", "registry.example:5000/web:1", True),
        ("registry.example:5000", "registry.example/web:1", False),
        ("https://registry.example/v2/", "registry.example/red/web", True),
        ("registry.example/red", "registry.example/red/web", True),
        ("registry.example/red", "registry.example/redder/web", False),
        ("*.example", "registry.example/web", True),
        ("*.example", "a.registry.example/web", False),
        ("https://index.docker.io/v1/", "busybox", True),
        ("docker.io", "red/web", True),
        ("docker.io", "localhost/web", False),
    ],
)
def test_a_credential_fits_by_registry_and_path(place: str, image: str, fits: bool) -> None:
    assert credentials_for_image(image, [secret(place)]) == ((HIM,) if fits else ())


def test_the_old_form_and_the_encoded_one_are_read() -> None:
    encoded = base64.b64encode(b"him:his").decode()
    assert credentials_for_image("r.io/a", [secret("r.io", ".dockercfg")]) == (HIM,)
    assert credentials_for_image("r.io/a", [secret("r.io", auth=encoded)]) == (HIM,)
    assert (
        credentials_for_image("r.io/a", [secret("r.io", auth="%"), Secret(data={".dockercfg": b"{"}), Secret()]) == ()
    )


def test_the_longest_path_comes_first_and_nothing_twice() -> None:
    near = secret("r.io/red", username="near", password="x")
    assert credentials_for_image("r.io/red/a", [secret("r.io"), near, secret("r.io")]) == (Credential("near", "x"), HIM)


def test_a_password_is_not_shown() -> None:
    assert "his" not in repr(HIM)


@pytest.mark.parametrize(
    ("image", "where"),
    [
        ("busybox", ("docker.io", "library/busybox")),
        ("red/web", ("docker.io", "red/web")),
        ("localhost/web", ("localhost", "web")),
    ],
)
def test_where_an_image_lies(image: str, where: tuple[str, str]) -> None:
    assert split_registry(image) == where
