"""Log lines of daemons."""

from __future__ import annotations

import logging

from reconcile.daemon import JournalKeyValue, KeyValue, TimedKeyValue


def test_log_line_has_key_value_fields() -> None:
    record = logging.makeLogRecord({"msg": "pod attached", "levelname": "INFO", "pod": "red/a", "why": 'a "b"\nc'})
    assert KeyValue().format(record) == r'level=info msg="pod attached" pod=red/a why="a \"b\"\nc"'


def test_log_line_of_a_file_begins_with_its_time() -> None:
    record = logging.makeLogRecord({"msg": "pod attached", "levelname": "INFO", "created": 1_767_225_599.9994})
    assert TimedKeyValue().format(record) == 'time=2025-12-31T23:59:59.999Z level=info msg="pod attached"'
    record.created = 1_767_225_600.0
    assert TimedKeyValue().format(record).startswith("time=2026-01-01T00:00:00.000Z level=")


def test_control_characters_of_a_client_neither_end_a_log_line_nor_reach_the_terminal() -> None:
    record = logging.makeLogRecord({"msg": "failed", "levelname": "ERROR", "path": "a\r\x1b[2J\u2028level=info é"})
    assert KeyValue().format(record) == r'level=error msg=failed path="a\r\x1b[2J\u2028level=info é"'


def test_every_line_for_journald_begins_with_its_priority() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        traceback = (type(error), error, error.__traceback__)
    record = logging.makeLogRecord(
        {"msg": "failed", "levelname": "WARNING", "levelno": logging.WARNING, "exc_info": traceback}
    )
    lines = JournalKeyValue().format(record).splitlines()
    assert lines[0] == "<4>level=warning msg=failed"
    assert lines[-1] == "<4>second"
    assert all(line.startswith("<4>") for line in lines)
    assert not KeyValue().format(record).startswith("<")
