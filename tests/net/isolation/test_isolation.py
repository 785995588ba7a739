"""The isolation tests, with real packets between two nodes."""

from tests.testbed.isolation.checks import *  # noqa: F403
