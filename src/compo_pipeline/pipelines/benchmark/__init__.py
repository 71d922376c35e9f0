"""Any models on the benchmarks, without a training."""
