"""Local engine, with a node process, workers forked from template processes, and direct calls."""
