"""Durations of admission plugins."""

from __future__ import annotations

import datetime
from itertools import count
from typing import Any, cast

import pytest

from master import errors
from master.admission.chain import AdmissionChain
from master.admission.plugin import AdmissionPlugin, AdmissionRequest, Operation
from master.errors import StatusError
from master.resources.pods import PODS
from master.storage.interface import Transaction
from reconcile.exposition import format_families
from tests.unit.master.admission.examples import pod

REQUEST = AdmissionRequest(
    operation=Operation.CREATE, resource=PODS, now=datetime.datetime.now(datetime.UTC), random_suffix=lambda: "abcde"
)
OBJECTS = cast("Transaction", None)


class Labels(AdmissionPlugin):
    """Changes objects."""

    def mutate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> Any:
        return obj


class StrictPlugin(AdmissionPlugin):
    """Rejects objects."""

    def validate(self, request: AdmissionRequest, obj: Any, objects: Transaction) -> None:
        raise errors.bad_request("no")


def test_plugins_are_timed_in_the_stages_in_which_they_act() -> None:
    ticks = count()
    chain = AdmissionChain((Labels(), StrictPlugin()), lambda: float(next(ticks)))
    chain.mutate(REQUEST, pod(), OBJECTS)
    chain.mutate(REQUEST, pod(), OBJECTS)
    with pytest.raises(StatusError):
        chain.validate(REQUEST, pod(), OBJECTS)
    chain.reserve(REQUEST, pod(), OBJECTS)
    name = "apiserver_admission_controller_admission_duration_seconds"
    lines = format_families(chain.metrics()).splitlines()
    assert [line for line in lines if line.startswith((f"{name}_sum", f"{name}_count"))] == [
        f'{name}_sum{{name="Labels",operation="CREATE",rejected="false",type="admit"}} 2.0',
        f'{name}_count{{name="Labels",operation="CREATE",rejected="false",type="admit"}} 2',
        f'{name}_sum{{name="Strict",operation="CREATE",rejected="true",type="validate"}} 1.0',
        f'{name}_count{{name="Strict",operation="CREATE",rejected="true",type="validate"}} 1',
    ]
