from __future__ import annotations

import pytest

from master.controllers.runtime import cool_down


@pytest.mark.parametrize(
    ("spent", "written", "seconds"),
    [
        (0.001, 0, 0.0),
        (0.1, 0, 0.4),
        (60.0, 0, 2.0),
        (60.0, 1, 0.0),
        (0.1, 500, 0.0),
        (0.1, 1500, 1.0),
        (0.1, 1_000_000, 2.0),
    ],
)
def test_a_controller_rests_after_a_look_in_vain_and_after_a_large_write(
    spent: float, written: int, seconds: float
) -> None:
    assert cool_down(spent, written) == pytest.approx(seconds)
