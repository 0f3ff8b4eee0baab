from trainkit.pools.executor import BrokenWorkerError as BrokenWorkerError
from trainkit.pools.executor import Executor as Executor
from trainkit.pools.executor import InitializerError as InitializerError
from trainkit.pools.joblib_backend import register_trainkit as register_trainkit
from trainkit.pools.pool import AsyncResult as AsyncResult
from trainkit.pools.pool import Pool as Pool
