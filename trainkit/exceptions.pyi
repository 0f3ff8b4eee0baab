from trainkit.plugins.compat.exceptions import *
