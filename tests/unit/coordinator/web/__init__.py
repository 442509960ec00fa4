"""Unit tests of the page and the REST API of a coordinator."""
