"""What the metrics of a function or connector hold."""

from __future__ import annotations

from snapline.dataflow.api.user_metrics import MetricGroup


def figures_of(group: MetricGroup) -> dict[str, float]:
    """Figures by name, after gauges were asked as heartbeats ask them."""
    for gauge in group.told:
        _ = gauge.value
    return {value.name: value.value for value in group.travelling()}
