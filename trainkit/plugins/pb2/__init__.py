"""The scheduler PB2, with its Gaussian process."""
