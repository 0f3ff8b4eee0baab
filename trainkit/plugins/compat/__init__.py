"""Names for compatibility with Ray, Ray Tune, RaySGD and tune-sklearn, and trainkit's own former paths.

Nothing in trainkit imports this package. `ray.txt` and `moved.txt` map each old name to its current name, and
`finder.py` resolves old names when they are imported. The other modules contain code of their own. Type
checkers read the stubs at the old paths, such as `trainkit/util/queue.pyi`.
"""
