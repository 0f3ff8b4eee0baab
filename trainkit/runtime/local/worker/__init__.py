"""Worker process, which runs the calls of one actor, or tasks."""
