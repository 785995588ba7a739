"""The isolation tests, asked of real switches by trace."""

from tests.isolation import *  # noqa: F403
