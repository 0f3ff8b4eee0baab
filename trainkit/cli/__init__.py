"""The command line: `trainkit status`, `trainkit why` and `trainkit stop`."""
