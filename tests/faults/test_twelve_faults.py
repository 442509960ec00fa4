"""Each of the twelve faults, and of two more that make a function wait, is planted in a running job, and its cause is
named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.planted_faults import FAULTS, Fault, PlantedFault, why_not

SOON = "poison row"
"""The one that `make test` plants, because its cause is named at once; those of the others are decided by
`coordinator/diagnosis`, whose tests tell the same stories."""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=() if name == SOON else pytest.mark.rare, id=name) for name, fault in FAULTS.items()],
)
def test_the_cause_of_a_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    """By `why`, and so by the page, which asks the same."""
    missing = why_not(fault)
    if missing:
        pytest.skip(f"NOT PLANTED: {missing}")
    with PlantedFault(tmp_path, fault) as planted:
        cause = planted.wait_for_cause()
    assert cause.finding.kind in fault.kinds
