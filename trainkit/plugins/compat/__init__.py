"""Names for compatibility with Ray, Ray Tune, RaySGD and tune-sklearn, and trainkit's own former paths.

Nothing in trainkit imports this package. `ray.txt` and `moved.txt` map each old name to its current name.
When a program imports an old name, `finder.py` replaces it by the current name. The other modules implement
functions and classes that exist only for compatibility. Type checkers read the stubs at the old paths, such
as `trainkit/util/queue.pyi`.
"""
