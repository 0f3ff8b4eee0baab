"""Parts that the core works without: each folder is a plugin, and its `entry_points.txt` connects it."""
