from trainkit.compat.session import *
