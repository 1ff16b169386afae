"""GPU benchmarks: predicted and measured costs of kernels, and the effect of lower precision."""
