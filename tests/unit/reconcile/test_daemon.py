"""Log lines of daemons."""

from __future__ import annotations

import logging

from reconcile.daemon import KeyValue


def test_log_line_has_key_value_fields() -> None:
    record = logging.makeLogRecord({"msg": "pod attached", "levelname": "INFO", "pod": "red/a", "why": 'a "b"\nc'})
    assert KeyValue().format(record) == r'level=info msg="pod attached" pod=red/a why="a \"b\"\nc"'
