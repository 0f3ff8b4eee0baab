"""Optional parts of trainkit. Each folder is a plugin, which its `entry_points.txt` connects to the core."""
