"""Executors: the part of the driver that starts and ends the trials' processes."""
