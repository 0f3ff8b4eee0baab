from trainkit.compat.core.collective import *
