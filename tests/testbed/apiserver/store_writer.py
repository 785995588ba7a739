"""A process that writes to a store until it is killed, and prints acknowledged writes: `NAME REVISION STEP` per line.

The history is kept so short that it is forgotten all the time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from api.core.node import Namespace
from api.meta.types import ObjectMeta
from master.resources.scheme import STORED_TYPES, group_resource
from master.storage.interface import Key
from master.storage.sqlite import SQLiteStorage
from master.storage.watch_cache import HistoryLimits
from tests.testbed.apiserver.changes import delete, put

NAMESPACES = group_resource(Namespace)

WRITERS = 4
KEEP = HistoryLimits(events=12)
GONE = 3
"""The step at which an object is removed; those before it change it."""


async def _write(store: SQLiteStorage, name: str) -> None:
    """Create, change, remove, and begin again."""
    while True:
        for step in range(GONE + 1):
            namespace = Namespace(metadata=ObjectMeta(name=name, labels={"step": str(step)}))
            record = store.get_uncommitted(Key(NAMESPACES, "", name))
            expect = record.revision if record else 0
            if step < GONE:
                (namespace,) = await store.write(put(namespace, expect))
            elif record:
                (namespace,) = await store.write(delete(record.object, expect))
            os.write(1, f"{name} {namespace.metadata.resource_version} {step}\n".encode())


async def _main(path: Path) -> None:
    store = await SQLiteStorage.open(path, STORED_TYPES, KEEP)
    await asyncio.gather(*(_write(store, f"w{number}") for number in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
