from trainkit.plugins.pools.executor import Executor as Executor
from trainkit.plugins.pools.joblib_backend import register_trainkit as register_trainkit
from trainkit.plugins.pools.pool import AsyncResult as AsyncResult
from trainkit.plugins.pools.pool import Pool as Pool
from trainkit.plugins.pools.worker import BrokenWorkerError as BrokenWorkerError
from trainkit.plugins.pools.worker import InitializerError as InitializerError
