from trainkit.plugins.compat.raysgd import *
