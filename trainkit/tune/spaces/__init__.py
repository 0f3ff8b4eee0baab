"""What a search space is made of and what can be asked of it: paths, parameters, grids, points, rules."""
