from trainkit.compat.runtime_env import *
