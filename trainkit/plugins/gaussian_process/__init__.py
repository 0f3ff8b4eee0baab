"""The searcher `GaussianProcessSearch`, which needs only NumPy."""
