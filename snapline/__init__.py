"""Snapline: exactly-once streaming Python on Spark. Everything that a user touches starts here."""
