"""Experiments on a virtual clock: the same controller, schedulers and searchers, without a process."""
