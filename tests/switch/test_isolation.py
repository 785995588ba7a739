"""The isolation tests, asked of real switches by trace."""

from tests.testbed.isolation.checks import *  # noqa: F403
