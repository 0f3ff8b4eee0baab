from trainkit.plugins.compat.core.actor_pool import ActorPool as ActorPool
