"""Folder that the check puts first in PYTHONPATH, so that Python runs `sitecustomize.py` at its start."""
