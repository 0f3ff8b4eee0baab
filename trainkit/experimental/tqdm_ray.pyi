from trainkit.compat.core.progress import *
