"""Local engine: a node process, workers forked from templates, and direct calls between processes."""
