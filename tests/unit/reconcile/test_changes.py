"""The difference of observed and desired state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconcile.changes import changes

maps = st.dictionaries(st.integers(0, 9), st.integers(0, 3))


@given(maps, maps)
def test_changes_turn_observed_into_desired(desired: dict[int, int], observed: dict[int, int]) -> None:
    actual = changes(desired, observed)
    after = {key: value for key, value in observed.items() if key not in actual.remove}
    assert after | actual.add | actual.change == desired
    assert bool(actual) == (desired != observed)
