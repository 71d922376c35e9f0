"""Which benchmarks are there, and which are missing."""
