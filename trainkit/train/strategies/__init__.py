"""Ways to spread a model over workers and devices: one file each, one protocol (base.py)."""
