"""The isolation checks, with real packets between two nodes."""

from tests.testbed.isolation.checks import *  # noqa: F403
