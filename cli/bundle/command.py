"""`podlane bundle`: the command."""

from __future__ import annotations

import argparse
import asyncio
import platform
import time
from pathlib import Path

from cli.command import InputError
from cli.doctor.command import add_config_argument
from cli.doctor.host import read_host
from cli.doctor.observations import NotObserved
from lab.process import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `podlane bundle`."""
    add_config_argument(parser)
    named = "podlane-bundle-HOST-TIME.tar.gz"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=f"the archive, a new file ({named})")


def bundle(arguments: argparse.Namespace) -> int:
    """Write the archive, and print its name. Raises InputError."""
    folder = f"podlane-bundle-{platform.node()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = arguments.output or Path(f"{folder}.tar.gz")
    try:
        asyncio.run(_write(arguments.config, path, folder))
    except NotObserved as error:
        raise InputError(f"{error}; {error.command}") from None
    print(f"{path}: send it to whoever helps you. Secrets are left out; look into it before, with tar -xzf")
    return 0


async def _write(config: Path, path: Path, folder: str) -> None:
    # Other commands start faster without these.
    from cli.bundle.archive import Archive  # noqa: PLC0415
    from cli.bundle.collect import collect, known_secrets  # noqa: PLC0415

    host = await read_host(config)
    known = await known_secrets(host)
    with Archive(path, folder, known.values) as archive:
        if known.missing:
            archive.note(known.missing)
        await collect(host, config, archive, Progress())
