"""Optional parts of trainkit. Each folder is a plugin, connected to the core by its `entry_points.txt`."""
