"""Tests against real Spark, real storage and real processes."""
