from trainkit.compat.core.internal_api import *
