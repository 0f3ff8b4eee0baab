from trainkit.plugins.compat.core.runtime_env import *
