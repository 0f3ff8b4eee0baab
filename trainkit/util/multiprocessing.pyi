from trainkit.plugins.compat.pools import AsyncResult as AsyncResult
from trainkit.plugins.compat.pools import Pool as Pool
