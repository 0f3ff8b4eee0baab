from trainkit.compat.raysgd import *
