"""Services: field selectors."""

from __future__ import annotations

import pytest

from api.meta.selectors import parse_field_selector
from master.resources.services import SERVICES
from tests.unit.master.examples import service


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("spec.type=NodePort", ["open"]),
        ("spec.type!=NodePort", ["plain", "headless"]),
        ("spec.clusterIP!=None", ["plain", "open"]),
        ("spec.type=ClusterIP,spec.clusterIP=None", ["headless"]),
    ],
)
def test_service_field_selector_selects_by_type_and_cluster_ip(selector: str, names: list[str]) -> None:
    services = [
        service(name, **spec)
        for name, spec in (("plain", {}), ("open", {"type": "NodePort"}), ("headless", {"clusterIP": "None"}))
    ]
    fields = parse_field_selector(selector, SERVICES.selectable_field_names)
    assert [obj.metadata.name for obj in services if fields.matches(SERVICES.field_values(obj))] == names
