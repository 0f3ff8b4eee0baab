"""Schedulers with a model of their own."""
