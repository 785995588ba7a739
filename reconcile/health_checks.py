"""Health checks and how kube-apiserver reports them: one check, all, or all but some. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _none() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A check of a daemon: `problem` returns what is wrong, an empty text if nothing is."""

    name: str
    problem: Callable[[], str] = _none


PING = HealthCheck("ping")
"""The check of a daemon that answers at all."""

LOG = HealthCheck("log")
"""A check that kubelets have. Logs are written without a queue, which could be blocked."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an endpoint answers. `problems` are those of all checks that were made."""

    text: str
    problems: tuple[str, ...]


def report(
    endpoint: str, checks: Sequence[HealthCheck], *, verbose: bool, exclude: Sequence[str], with_reasons: bool
) -> Report:
    """Report all checks but those that `exclude` names. `endpoint` is the name of the endpoint, such as readyz.

    A failure is always reported with all checks. Without `with_reasons`, it has no reasons: everybody may read it.
    """
    lines, problems = [], []
    for check in checks:
        if check.name in exclude:
            lines.append(f"[+]{check.name} excluded: ok\n")
        elif problem := check.problem():
            problems.append(problem)
            lines.append(f"[-]{check.name} failed: {problem if with_reasons else 'reason withheld'}\n")
        else:
            lines.append(f"[+]{check.name} ok\n")
    unknown = sorted({*exclude} - {check.name for check in checks})
    if unknown:
        names = ",".join(map(json.dumps, unknown))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}\n")
    lines.append(f"{endpoint} check {'failed' if problems else 'passed'}\n")
    return Report("".join(lines) if verbose or problems else "ok", tuple(problems))


def report_of(check: HealthCheck) -> Report:
    """Report one check, with its reason."""
    problem = check.problem()
    return Report(f"internal server error: {problem}\n" if problem else "ok", (problem,) if problem else ())
