#!/usr/bin/env python3
"""A Docker runtime for machines whose root lacks capabilities: runc without those that are missing.

Docker asks runc for every capability for a privileged container; where this machine's own root lacks one, runc fails.
With `dockerd --add-runtime=whole=FILE` pods with `runtimeClassName: whole` run all the same.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

NAME = "whole"
SYS_RESOURCE = 24


def lacks_sys_resource() -> bool:
    """Return whether this process lacks the capability SYS_RESOURCE."""
    [bounds] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "CapBnd" in line]
    return not int(bounds, 16) >> SYS_RESOURCE & 1


def _lessen(process: dict[str, Any]) -> None:
    for names in process.get("capabilities", {}).values():
        if "CAP_SYS_RESOURCE" in names:
            names.remove("CAP_SYS_RESOURCE")
    own = int(Path("/proc/self/oom_score_adj").read_text())
    process["oomScoreAdj"] = max(process.get("oomScoreAdj", own), own)


def _files(words: list[str]) -> list[Path]:
    """Return the files that configure runc: the bundle of a new container, or the process of an exec."""
    given = dict(pairwise(words))
    return [
        Path(given[option], name)
        for option, name in (("--bundle", "config.json"), ("--process", ""))
        if option in given
    ]


def main() -> None:
    """Never returns."""
    for path in _files(sys.argv) if lacks_sys_resource() else ():
        document = json.loads(path.read_text())
        _lessen(document.get("process", document))
        path.write_text(json.dumps(document))
    os.execvp("runc", ["runc", *sys.argv[1:]])


if __name__ == "__main__":
    main()
