"""Records that a session keeps of its calls."""
