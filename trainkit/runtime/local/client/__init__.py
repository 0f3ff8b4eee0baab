"""Client side of the node, which is the local engine in the driver and in workers."""
