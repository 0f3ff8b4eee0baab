from trainkit.compat.queue import *
