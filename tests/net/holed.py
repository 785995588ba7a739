"""podlane-sdn whose pipeline has a hole: `python -m tests.net.holed HOLE ARGUMENTS...`."""

from __future__ import annotations

import sys

from sdn import network
from sdn.__main__ import main
from tests.holes import HOLES, LEFTOVERS

setattr(network, "compile_flows", (HOLES | LEFTOVERS)[sys.argv.pop(1)].compiled)  # noqa: B010 - it is no export of it
sys.exit(main())
