"""Services of several projects."""

from __future__ import annotations

import pytest

from nameserver.service_store import ServiceStore
from tests.unit.nameserver.examples import PORTS, WEB, endpoint, service, slice_of


@pytest.fixture
def directory() -> ServiceStore:
    service_store = ServiceStore()
    service_store.replace(
        [
            service("red", "web", WEB),
            service("red", "db", '{"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]}'),
            service("red", "empty", '{"clusterIP": "None"}'),
            service("red", "docs", '{"type": "ExternalName", "externalName": "www.example.com"}'),
            service("red", "here", '{"type": "ExternalName", "externalName": "web.red.svc.cluster.local"}'),
            service("red", "round", '{"type": "ExternalName", "externalName": "round.red.svc.cluster.local"}'),
            service("red", "late", '{"clusterIP": "None", "publishNotReadyAddresses": true}'),
            service("blue", "web", '{"clusterIP": "172.30.0.6", "ports": [{"port": 80}]}'),
            service("pink", "web", '{"clusterIP": "172.30.0.7", "ports": [{"port": 80}]}'),
            service("default", "web", '{"clusterIP": "172.30.0.8", "ports": [{"port": 80}]}'),
        ],
        [
            slice_of("web", "red", endpoint("10.128.0.9"), ports='[{"name": "http", "port": 8080, "protocol": "TCP"}]'),
            slice_of(
                "db",
                "red",
                endpoint("10.128.0.2", hostname="db-0"),
                endpoint("10.128.2.3"),
                endpoint("10.128.0.4", conditions={"ready": False}),
                ports=PORTS,
            ),
            slice_of("db", "red", endpoint("10.128.4.5"), ports=PORTS, number=2),
            slice_of("late", "red", endpoint("10.128.0.6", conditions={"ready": False})),
        ],
    )
    return service_store
