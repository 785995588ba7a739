"""A machine and figures."""

from __future__ import annotations

from bench.measurement import Budget, Measurement, SizeName, at_floor, at_peer
from bench.runs import Machine, Run

MACHINE = Machine(cores=2, cpu="Example CPU", memory=8, kernel="6.1", python="3.11.2")
ATTACH = Measurement("attach", "ms", (12.0, 10.0, 30.0), at_floor(1.6), "bare", (5.0, 6.0, 7.0), load=0.5)
RATE = Measurement(
    "in flight", "pods/s", (100.0, 90.0), at_peer(0.5), peer="another", peer_samples=(300.0, 310.0), load=0.5
)
MEMORY = Measurement("resident", "MB", (59.0,), Budget(60), load=0.5)


def run_of(*measurements: Measurement, name: str = "attach", version: str = "0.1.0", machine: Machine = MACHINE) -> Run:
    """Return a run of one measure."""
    return Run(version, "0123abc", machine, SizeName.FULL, {name: list(measurements)})
