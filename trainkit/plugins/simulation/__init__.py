"""Simulation of experiments on a virtual clock."""
