"""Searchers that use other packages; most encode each parameter as a number from 0 to 1 or an index."""
