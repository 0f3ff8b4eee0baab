from trainkit.pools.executor import Executor as Executor
from trainkit.pools.joblib_backend import register_trainkit as register_trainkit
from trainkit.pools.pool import AsyncResult as AsyncResult
from trainkit.pools.pool import Pool as Pool
from trainkit.pools.worker import BrokenWorkerError as BrokenWorkerError
from trainkit.pools.worker import InitializerError as InitializerError
