from trainkit.compat.core.iterators import *
