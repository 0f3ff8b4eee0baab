from trainkit.air import integrations as integrations
from trainkit.air import session as session
from trainkit.tune.config import CheckpointConfig as CheckpointConfig
from trainkit.tune.config import FailureConfig as FailureConfig
from trainkit.tune.config import RunConfig as RunConfig
from trainkit.tune.core.checkpoint import Checkpoint as Checkpoint
from trainkit.tune.core.resources import ScalingConfig as ScalingConfig
from trainkit.tune.results.result import Result as Result
