"""`python -m bench [NAME...]`: measure, then print one table."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from bench import document
from bench.measurement import Progress, SizeName, show
from bench.measures import MODULES, load
from bench.runs import Run, compare, read_run, this_commit, this_machine, this_version, write_run


def main() -> int:
    """Measure. Return 0 if everything could be measured; a missed budget is no failure."""
    parser = _parser()
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - MODULES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(MODULES)}")
    names, size = arguments.names or list(MODULES), SizeName(arguments.size)
    earlier = _earlier(parser, arguments.compare, size) if arguments.compare else None
    if arguments.record:
        _check_record(parser, names, size)
    signal.signal(signal.SIGTERM, _exit)
    run = Run(this_version(), this_commit(), this_machine(), size, {})
    try:
        for name in names:
            run.measures[name] = load(name).run(size, _progress(name))
    except KeyboardInterrupt:
        return 130
    finally:
        if run.measures:
            _report(run, earlier, arguments.json, record=arguments.record)
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose help explains every measure and its sizes."""

    def format_help(self) -> str:
        width = max(map(len, MODULES))
        lines = ["", "names and their sizes:"]
        for name in MODULES:
            measure = load(name)
            lines.append(f"  {name:{width}}  {measure.description}")
            lines += [f"  {'':{width}}  {size}: {measure.describe_size(size)}" for size in SizeName]
        return super().format_help() + "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m bench",
        description="Measures this machine: each figure beside the floor of the machine or beside a peer.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to measure; everything if no name is given")
    parser.add_argument(
        "--size",
        choices=[str(size) for size in SizeName],
        default=str(SizeName.FULL),
        help="full (default): figures that can be compared; smallest: seconds, only to see that everything is measured",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every sample to this file, too")
    parser.add_argument("--compare", metavar="FILE", type=Path, help="print ratios to the run that --json wrote there")
    parser.add_argument(
        "--record", action="store_true", help="put the figures into docs/performance.json and docs/performance.md"
    )
    return parser


def _earlier(parser: argparse.ArgumentParser, path: Path, size: SizeName) -> Run:
    try:
        earlier = read_run(path)
    except (OSError, msgspec.MsgspecError) as error:
        parser.error(f"--compare: {path} is not a file that --json wrote: {error}")
    if earlier.size is not size:
        parser.error(f"--compare: {path} is a run of size {earlier.size}, this is one of size {size}")
    return earlier


def _check_record(parser: argparse.ArgumentParser, names: list[str], size: SizeName) -> None:
    """Refuse what would mix figures that do not belong together."""
    if size is not SizeName.FULL:
        parser.error(f"--record: only figures of size {SizeName.FULL} are recorded")
    entry = document.entry_of(document.read_entries(document.DATA), this_version())
    if entry is not None and entry.machine != this_machine() and len(names) < len(MODULES):
        parser.error(
            f"--record: {document.DATA.name} has figures of version {entry.version} from another machine "
            f"({entry.machine}); measure everything here to replace them"
        )


def _report(run: Run, earlier: Run | None, json: Path | None, *, record: bool) -> None:
    """Print the tables, and write the files."""
    print("\n" + show(measurement.figure() for figures in run.measures.values() for measurement in figures))
    if earlier is not None:
        print(f"\nearlier: {earlier.commit}")
        if earlier.machine != run.machine:
            print(f"on another machine: {earlier.machine}")
        print(compare(run.measures, earlier.measures))
    if json is not None:
        write_run(json, run)
    if record:
        entries = document.with_run(document.read_entries(document.DATA), run, list(MODULES))
        document.write_entries(document.DATA, entries)
        document.DOCUMENT.write_text(document.document(entries))


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _progress(name: str) -> Progress:
    begin = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - begin:5.1f}s] {name}: {text}", flush=True)

    progress("begins")
    return progress


if __name__ == "__main__":
    sys.exit(main())
