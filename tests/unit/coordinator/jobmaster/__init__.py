"""Unit tests of the JobMaster core."""
