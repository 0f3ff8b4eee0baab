from trainkit.plugins.compat.reporters import *
