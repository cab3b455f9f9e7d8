"""Speed and memory on GPUs: ``python -m benchmarks.gpu``."""
