from trainkit.compat.pools import AsyncResult as AsyncResult
from trainkit.compat.pools import Pool as Pool
