from trainkit.plugins.compat.core.state import *
