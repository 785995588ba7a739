"""The text format of Prometheus: what its own parser reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from reconcile.exposition import (
    COUNTER,
    GAUGE,
    Histogram,
    MetricFamily,
    Sample,
    counter,
    format_families,
    format_labels,
    gauge,
    histogram,
)

Values = dict[str, dict[tuple[tuple[str, str], ...], float]]


def values(text: str) -> Values:
    """Return the values by name and labels."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_metric_labels_and_values_round_trip() -> None:
    odd = 'a"b\\c\nd'
    text = format_families(
        (
            MetricFamily("x_total", COUNTER, "Words.", [Sample(1e22, format_labels(b=odd, a="1"))]),
            MetricFamily("y", GAUGE, "", []),
        )
    )
    assert values(text) == {"x_total": {(("a", "1"), ("b", odd)): 1e22}}
    assert "# TYPE y" not in text


def test_families_without_labels_and_with_them_are_read_as_they_were_written() -> None:
    text = format_families((counter("a_total", "A.", {"": 3}), gauge("b", "B.", {'l="2"': 2, 'l="1"': 1.5})))
    assert values(text) == {"a_total": {(): 3.0}, "b": {(("l", "1"),): 1.5, (("l", "2"),): 2.0}}
    assert text.index('l="1"') < text.index('l="2"')


def test_histogram_counts_a_value_in_every_bucket_from_its_own_on() -> None:
    seconds = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7):
        seconds.observe(value)
    for labels, expected in (("", ()), (format_labels(verb="GET"), (("verb", "GET"),))):
        found = values(format_families((histogram("s", "S.", {labels: seconds}),)))
        buckets = {dict(key)["le"]: value for key, value in found["s_bucket"].items()}
        assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
        assert found["s_count"] == {expected: 4}
        assert found["s_sum"] == {expected: 7.65}
