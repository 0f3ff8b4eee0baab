"""Actors, tasks and objects on this machine's processes, in the calling process, or on a Ray cluster."""
