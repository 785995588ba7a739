"""Settings of a daemon: file, flags and defaults."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from reconcile.config_file import InvalidConfig, load, merge


class ExampleConfig(msgspec.Struct, frozen=True, rename="camel"):
    """For the test."""

    node_name: Annotated[str, msgspec.Meta(description="a name")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535, description="a port")] = 80
    plugin: str = "a"


def test_config_flag_overrides_file_and_file_overrides_default(tmp_path: object) -> None:
    assert merge(ExampleConfig, {"nodeName": "n", "port": 1}, {"port": "2"}) == ExampleConfig("n", 2)
    assert merge(ExampleConfig, {"nodeName": "n"}, {}) == ExampleConfig("n", 80)


def test_config_reports_every_error() -> None:
    with pytest.raises(InvalidConfig) as reported:
        merge(ExampleConfig, {"port": 70000, "plugin": 3}, {})
    assert [line.partition(":")[0] for line in str(reported.value).splitlines()] == ["nodeName", "port", "plugin"]
    with pytest.raises(InvalidConfig, match='nodNam: is not a setting; did you mean "nodeName"'):
        merge(ExampleConfig, {"nodNam": "x"}, {})


def test_invalid_config_flag_exits_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(ExampleConfig, "podlane-test", "/nowhere", ["--node-name", "n", "--port", "none"])
    assert end.value.code == 2
    assert "podlane-test: port: found 'none'" in capsys.readouterr().err


def test_check_config_prints_effective_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(ExampleConfig, "podlane-test", "/nowhere", ["--node-name", "n", "--check"])
    assert end.value.code == 0
    assert capsys.readouterr().out == "nodeName: n\nport: 80\nplugin: a\n"
