"""Searchers that use other packages.

Most of them encode each parameter as a number from 0 to 1 or as an index.
"""
