"""`python -m bench [NAME...]`: measure, then print one table."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench import (
    api_server,
    endpoint_latency,
    host_subnets,
    megaflows,
    name_server,
    pod_attach,
    pod_attach_alternatives,
    pod_start,
    service_proxy,
    streaming,
    switch_restart,
    userspace_proxy,
)
from bench.measurement import Measurement, show

MEASURES: dict[str, Callable[[Callable[[str], None]], list[Measurement]]] = {
    "attach": pod_attach.measure,
    "rivals": pod_attach_alternatives.measure,
    "peers": host_subnets.measure,
    "outage": switch_restart.measure,
    "megaflows": megaflows.measure,
    "pods": pod_start.measure,
    "master": api_server.measure,
    "services": service_proxy.measure,
    "endpoints": endpoint_latency.measure,
    "proxy": userspace_proxy.measure,
    "streams": streaming.measure,
    "names": name_server.measure,
}


def main() -> int:
    """0 when everything could be measured; a missed budget is no failure."""
    parser = argparse.ArgumentParser(prog="bench", description="Figures, beside the floor of this machine.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"what to measure ({' '.join(MEASURES)})")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every sample there, too")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - MEASURES.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(MEASURES)}")
    signal.signal(signal.SIGTERM, _end)
    figures: list[Measurement] = []
    try:
        for name in arguments.names or MEASURES:
            figures += MEASURES[name](_teller(name))
    except KeyboardInterrupt:
        return 130
    finally:
        if figures:
            print("\n" + show(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([figure.document() for figure in figures], indent=1) + "\n")
    return 0


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _teller(name: str) -> Callable[[str], None]:
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:5.1f}s] {name}: {text}", flush=True)

    say("begins")
    return say


if __name__ == "__main__":
    sys.exit(main())
