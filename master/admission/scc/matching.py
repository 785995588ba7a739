"""The decision about a pod: the SCC that admits it, or why none does. Pure.

Source: the SCC admission of OpenShift. SCCs are tried in order (`order.py`). The first one that the pod's service
account or its requester may use, and whose conditions the pod meets after it is filled in, admits the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from api.core.pod import Pod
from master.admission.scc.namespace_ranges import NamespaceRanges
from master.admission.scc.order import permissiveness, sort_sccs
from master.admission.scc.provider import MAX_VIOLATIONS, MutablePart, Violation, forbidden, provider_for
from master.resources.metadata import with_metadata
from master.resources.security_context_constraints import SecurityContextConstraints

SCC_ANNOTATION = "openshift.io/scc"
SUBJECT_ANNOTATION = "security.openshift.io/validated-scc-subject-type"
REQUIRED_SCC_ANNOTATION = "openshift.io/required-scc"

SERVICE_ACCOUNT_SUBJECT, USER_SUBJECT = "serviceaccount", "user"

Usable = Callable[[SecurityContextConstraints], str]
"""Return the subject that may use an SCC, SERVICE_ACCOUNT_SUBJECT or USER_SUBJECT; empty if neither may."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a pod with one SCC. `violations` is empty if the SCC admits it. `subject` may use the SCC; it is
    empty if nobody may. `pod` is the pod as filled in.
    """

    scc: SecurityContextConstraints
    subject: str
    pod: Pod
    violations: tuple[Violation, ...]

    @property
    def admits(self) -> bool:
        """Return whether the SCC admits the pod."""
        return bool(self.subject) and not self.violations


@dataclass(frozen=True, slots=True)
class Decision:
    """The trials in order. The last one admits the pod, or none does."""

    trials: Sequence[Trial]

    @property
    def admitted(self) -> Trial | None:
        """Return the trial that admits the pod; None if none does."""
        return self.trials[-1] if self.trials and self.trials[-1].admits else None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Return the violations of all trials in order. A violation that several SCCs share stands once."""
        found = dict[Violation, None]()
        for trial in self.trials:
            if trial.subject:
                found.update(dict.fromkeys(trial.violations))
            else:
                found[not_usable(trial.scc)] = None
        return tuple(found)


def decide(
    pod: Pod,
    sccs: Iterable[SecurityContextConstraints],
    ranges: NamespaceRanges,
    usable: Usable,
    part: MutablePart = MutablePart.POD,
) -> Decision:
    """Return the decision about a pod, of which this part may be filled in.

    If it is not a new pod, the SCC that admitted it before is tried first.
    """
    candidates = sort_sccs(sccs)
    if part is not MutablePart.POD:
        before = pod.metadata.annotations.get(SCC_ANNOTATION, "")
        candidates.sort(key=lambda scc: scc.metadata.name != before)
    trials: list[Trial] = []
    for scc in candidates:
        subject = usable(scc)
        trial = try_scc(pod, scc, ranges, subject, part)
        trials.append(trial)
        if trial.admits:
            break
    return Decision(trials)


def try_scc(
    pod: Pod,
    scc: SecurityContextConstraints,
    ranges: NamespaceRanges,
    subject: str,
    part: MutablePart = MutablePart.POD,
) -> Trial:
    """Return what becomes of a pod with one SCC. Nothing is checked if nobody may use it."""
    if not subject:
        return Trial(scc, "", pod, ())
    provider = provider_for(scc, ranges)
    filled = provider.fill(pod, part)
    violations = tuple(islice(provider.violations(filled), MAX_VIOLATIONS))
    return Trial(scc, subject, filled, violations)


def least_permissive_scc(pod: Pod, decision: Decision, ranges: NamespaceRanges) -> str:
    """Return the name of the least permissive SCC of a decision that nobody may use for the pod and that would admit
    it; empty if none would.
    """
    unusable = (trial.scc for trial in decision.trials if not trial.subject)
    for scc in sorted(unusable, key=lambda scc: (permissiveness(scc), scc.metadata.name)):
        if try_scc(pod, scc, ranges, USER_SUBJECT).admits:
            return scc.metadata.name
    return ""


def not_usable(scc: SecurityContextConstraints) -> Violation:
    """Return the violation by an SCC that nobody may use for the pod."""
    return forbidden(f'provider "{scc.metadata.name}"', "not usable by user or serviceaccount")


def annotate(trial: Trial) -> Pod:
    """Return the pod that a trial admits, with the SCC and its subject in annotations."""
    annotations = {
        **trial.pod.metadata.annotations,
        SCC_ANNOTATION: trial.scc.metadata.name,
        SUBJECT_ANNOTATION: trial.subject,
    }
    return with_metadata(trial.pod, annotations=annotations)
