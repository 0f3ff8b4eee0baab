"""Public comparison of searches: `python -m benchmarks.league`."""
