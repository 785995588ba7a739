"""A server's certificate and key for the tests of a module."""

from __future__ import annotations

import pytest

from tests.testbed.identity_providers.https_server import ServerFiles, server_files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> ServerFiles:
    return server_files(tmp_path_factory.mktemp("server"))
