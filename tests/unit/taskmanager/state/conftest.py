"""Tests of operators' state run on both backends."""

from __future__ import annotations

from tests.unit.taskmanager.operators.conftest import state_backend

__all__ = ["state_backend"]
