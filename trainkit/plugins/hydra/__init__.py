"""Sweeper and launcher of Hydra that use trainkit's tuner."""
