"""podlane-sdn whose pipeline has a hole: `python -m tests.net.holed HOLE ARGUMENTS...`."""

from __future__ import annotations

import sys

from sdn import base, network
from sdn.__main__ import main
from sdn.services import host, rows
from tests.holes import HOLES, LEFTOVERS, SERVICE_HOLES

hole = (HOLES | LEFTOVERS | SERVICE_HOLES)[sys.argv.pop(1)]
for module, name, holed in (
    (network, "compile_flows", hole.compiled),
    (base, "nat_table", hole.masks),
    (rows, "port_rows", hole.port_rows),
    (host, "table", hole.services),
):
    assert hasattr(module, name)
    setattr(module, name, holed)
sys.exit(main())
