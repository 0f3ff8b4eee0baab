from trainkit.compat.exceptions import *
