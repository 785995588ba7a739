"""Paths that name no resource."""

from __future__ import annotations

from master.server.nonresource import slis
from reconcile.health_checks import PING, HealthCheck


def test_slis_have_the_state_of_each_check_of_each_endpoint() -> None:
    lines = slis((PING, HealthCheck("storage", lambda: "the disk is full"))).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'kubernetes_healthcheck{name="ping",type="healthz"} 1',
        'kubernetes_healthcheck{name="ping",type="livez"} 1',
        'kubernetes_healthcheck{name="ping",type="readyz"} 1',
        'kubernetes_healthcheck{name="storage",type="readyz"} 0',
    ]
