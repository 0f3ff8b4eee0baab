"""Machines of a batch job or of a list of hosts, and commands that run on them."""
