#!/usr/bin/python3 -IS
"""runc, on machines that have not all capabilities themselves: what a container cannot be given it is not given.

Without CAP_SYS_RESOURCE neither a privileged container nor one with a lower oom_score_adj could be started at all.
"""

import json
import os
import sys
from pathlib import Path

NAMES = {24: "CAP_SYS_RESOURCE"}
SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")


def lacking() -> set[str]:
    """Names of capabilities that even root does not have here."""
    lines = Path("/proc/self/status").read_text().splitlines()
    bounds = int(next(line.split()[1] for line in lines if line.startswith("CapBnd")), 16)
    return {name for bit, name in NAMES.items() if not bounds >> bit & 1}


def cut(process: dict[str, object], absent: set[str]) -> None:
    """Take them out of what a process is to have."""
    held = process.get("capabilities")
    if isinstance(held, dict):
        for kind in SETS:
            held[kind] = [name for name in held.get(kind) or () if name not in absent]
    score = process.get("oomScoreAdj")
    if isinstance(score, int):
        process["oomScoreAdj"] = max(score, int(Path("/proc/self/oom_score_adj").read_text()))


def main() -> None:
    """Does not come back."""
    words, absent = sys.argv[1:], lacking()
    for flag, below in (("--bundle", "config.json"), ("--process", "")):
        if absent and flag in words:
            path = Path(words[words.index(flag) + 1]) / below
            document = json.loads(path.read_text())
            cut(document["process"] if below else document, absent)
            path.write_text(json.dumps(document))
    os.execvp("runc", ["runc", *words])


if __name__ == "__main__":
    main()
