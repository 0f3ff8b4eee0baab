"""Decisions of an experiment: a state machine without side effects."""
