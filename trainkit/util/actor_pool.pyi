from trainkit.compat.actor_pool import ActorPool as ActorPool
