"""The status of ValidatingAdmissionPolicies. Pure.

The master does not know the types of the objects that a policy is about, so its type checking finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from master.controllers.actions import Action, Failed, Update, isolate_errors
from master.controllers.context import Lister
from master.resources.admission_policies import ValidatingAdmissionPolicy


def reconcile(policies: Iterable[ValidatingAdmissionPolicy]) -> Iterator[Update | Failed]:
    """Yield the policies whose status is not about their generation."""

    def observe(policy: ValidatingAdmissionPolicy) -> Iterator[Update]:
        generation = policy.metadata.generation
        if policy.status.observed_generation != generation or policy.status.type_checking is None:
            status = replace(policy.status, observed_generation=generation, type_checking={})
            yield Update(replace(policy, status=status), policy)

    return isolate_errors(policies, observe)


def sync_admission_policies(lister: Lister) -> Iterable[Action]:
    """Bring the status of all policies up to date."""
    return reconcile(lister.list(ValidatingAdmissionPolicy))
