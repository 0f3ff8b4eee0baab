from trainkit.plugins.compat.pools import register_ray as register_ray
from trainkit.plugins.pools.joblib_backend import register_trainkit as register_trainkit
