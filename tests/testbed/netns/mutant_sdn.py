"""podlane-sdn with a mutant pipeline: `python -m tests.testbed.netns.mutant_sdn MUTANT ARGUMENTS...`."""

from __future__ import annotations

import sys

from sdn import controller
from sdn.__main__ import main
from sdn.host import reconciler
from sdn.pipeline import service
from sdn.proxy import nftables_backend
from tests.testbed.isolation.mutants import MUTANTS, SERVICE_MUTANTS, STALE_FLOW_MUTANTS

mutant = (MUTANTS | STALE_FLOW_MUTANTS | SERVICE_MUTANTS)[sys.argv.pop(1)]
for module, name, mutated in (
    (controller, "compile_flows", mutant.network_flows),
    (reconciler, "masquerade_table", mutant.masquerade),
    (service, "service_port_flows", mutant.port_flows),
    (nftables_backend, "services_table", mutant.services),
):
    assert hasattr(module, name)
    setattr(module, name, mutated)
sys.exit(main())
