"""Searchers that use other packages, mostly over one encoding: numbers from 0 to 1, and indices in lists."""
