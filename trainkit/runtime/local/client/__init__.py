"""Client of the node: the local engine in the driver and in workers."""
