"""Searchers that use other packages.

Most of these searchers encode each parameter as a number from 0 to 1, or as an index.
"""
