from trainkit.plugins.compat.session import *
