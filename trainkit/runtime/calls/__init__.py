"""Remote functions, methods, their options and results, and the context of a running call."""
