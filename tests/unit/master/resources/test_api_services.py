"""APIService: the columns of its table."""

from __future__ import annotations

import datetime

from api.meta.types import Condition, ObjectMeta
from master.resources.api_services import (
    API_SERVICES,
    APIService,
    APIServiceReference,
    APIServiceSpec,
    APIServiceStatus,
)

NOW = datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)


def cells(api: APIService) -> tuple[object, ...]:
    return API_SERVICES.cells(api, NOW)[:3]


def test_table_shows_service_and_availability() -> None:
    assert [column.name for column in API_SERVICES.columns] == ["Name", "Service", "Available", "Age"]
    remote = APIService(
        metadata=ObjectMeta(name="v1.g.io"),
        spec=APIServiceSpec(service=APIServiceReference(namespace="ns", name="svc", port=443)),
    )
    assert cells(remote) == ("v1.g.io", "ns/svc", "Unknown")
    failed = Condition(type="Available", status="False", reason="ServiceNotFound")
    unavailable = APIService(metadata=remote.metadata, spec=remote.spec, status=APIServiceStatus(conditions=(failed,)))
    assert cells(unavailable) == ("v1.g.io", "ns/svc", "False (ServiceNotFound)")
    passed = APIServiceStatus(conditions=(Condition(type="Available", status="True", reason="Local"),))
    assert cells(APIService(metadata=ObjectMeta(name="v1."), status=passed)) == ("v1.", "Local", "True")
