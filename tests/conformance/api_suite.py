"""Runs the API specs of Kubernetes against the master and prints the result of each, or why it was skipped.

python -m tests.conformance.api_suite [FOCUS]
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.conformance.api_specs import GROUPS, NOT_ASKED
from tests.conformance.build import HOME, build
from tests.conformance.podlane_master import OwnNode
from tests.conformance.suite import Asker, Result, names, results, run_specs, say, table

_GROUP = re.compile(r"\[([\w.-]+)\]")


def reason(spec: str) -> str:
    """Return the reason why a spec is not run; empty if it must pass."""
    return next((why for pattern, why in NOT_ASKED if re.search(pattern, spec)), "")


def meant(specs: Iterable[str], focus: str) -> tuple[str, ...]:
    """Return the specs that match a pattern, sorted."""
    return tuple(sorted(spec for spec in specs if re.search(focus, spec)))


def counted(specs: Iterable[str], rows: Iterable[Result]) -> str:
    """Return a table of passed, failed and skipped specs by group, and the number of specs for each reason."""
    ends = {result.spec: result.outcome for result in rows}
    groups: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for spec in specs:
        actual = _GROUP.search(spec)
        outcome = ends.get(spec, "not asked")
        groups.setdefault(actual[1] if actual else "", Counter())[outcome] += 1
        if outcome == "not asked":
            reasons[reason(spec)] += 1
    lines = [f"{'':22}passed  failed  not asked"]
    for group, found_ends in sorted(groups.items()):
        lines.append(f"{group:22}{found_ends['passed']:6}{found_ends['failed']:8}{found_ends['not asked']:11}")
    return "\n".join([*lines, *(f"{number:5} not asked: {why}" for why, number in reasons.most_common())])


def main() -> int:
    """Returns 1 if a spec failed that has to pass."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("focus", nargs="?", default="|".join(GROUPS), help="a regular expression for names of specs")
    focus = parser.parse_args().focus
    build()
    reports = HOME / "reports" / time.strftime("api-%Y%m%d-%H%M%S")
    with OwnNode() as node:
        say("a master of ours is up; a node of ours joins it")
        node.agent()
        node.tokens()
        asker = Asker(node.command_prefix, node.root / "admin")
        run_specs(asker, focus, tuple(pattern for pattern, _ in NOT_ASKED), reports)
    return _report(reports, focus)


def _report(reports: Path, focus: str) -> int:
    rows = tuple(results(reports))
    requested = {result.spec for result in rows}
    specs = meant(names(reports), focus)
    forgotten = [spec for spec in specs if spec not in requested and not reason(spec)]
    sys.stdout.write(f"{table(rows)}\n\n{counted(specs, rows)}\n")
    for spec in forgotten:
        say(f"has to pass and was not run: {spec}")
    failed = [result for result in rows if result.outcome == "failed"]
    say(f"{len(rows) - len(failed)} passed, {len(failed)} failed ({reports})")
    return 1 if failed or forgotten or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
