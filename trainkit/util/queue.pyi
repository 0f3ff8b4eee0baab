from trainkit.plugins.compat.core.queue import *
