"""Running aggregates, and the accumulators that windows use as well."""
