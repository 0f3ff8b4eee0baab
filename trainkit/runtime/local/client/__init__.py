"""Client side of the node: the local engine of the driver and of each worker."""
