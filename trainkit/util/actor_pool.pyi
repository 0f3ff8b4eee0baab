from trainkit.compat.actor_pool import *
