"""Worker process: runs the calls of one actor, or of leased tasks."""
