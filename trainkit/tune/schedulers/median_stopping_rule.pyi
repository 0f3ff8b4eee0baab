from trainkit.plugins.median.scheduler import *
