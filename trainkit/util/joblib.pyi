from trainkit.compat.pools import register_ray as register_ray
from trainkit.pools.joblib_backend import register_trainkit as register_trainkit
