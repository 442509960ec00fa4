"""Unit tests of the ResourceManager core."""
