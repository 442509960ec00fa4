"""Tests of snapline.protos."""
