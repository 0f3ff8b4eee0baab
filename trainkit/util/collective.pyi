from trainkit.plugins.compat.core.collective import *
