"""The isolation tests, with real packets between two nodes."""

from tests.isolation import *  # noqa: F403
