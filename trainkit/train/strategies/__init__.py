"""Ways to spread a model over workers and devices: one file each, on the classes of base.py."""
