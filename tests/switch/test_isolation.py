"""The isolation checks, by trace on real switches."""

from tests.testbed.isolation.checks import *  # noqa: F403
