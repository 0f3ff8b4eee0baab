"""Executors, the part of the driver that starts and ends trials' processes."""
