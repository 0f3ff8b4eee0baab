"""Names that exist because Ray, Ray Tune, RaySGD or tune-sklearn has them, and former paths of ours.

Nothing in trainkit imports this package. `ray.txt` and `moved.txt` say what each old name stands for, and
`finder.py` serves it when it is asked for. The other modules have behaviour of their own. Type checkers read
the stubs at the old paths, such as `trainkit/util/queue.pyi`.
"""
