"""Golden jobs: every operator, run three ways on both backends, against dictionaries and loops."""
