from trainkit.plugins.pareto.scheduler import *
