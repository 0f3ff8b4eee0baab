from trainkit.air import integrations as integrations
from trainkit.air import session as session
from trainkit.tune.checkpoint import Checkpoint as Checkpoint
from trainkit.tune.config import CheckpointConfig as CheckpointConfig
from trainkit.tune.config import FailureConfig as FailureConfig
from trainkit.tune.config import RunConfig as RunConfig
from trainkit.tune.outcome.result import Result as Result
from trainkit.tune.scaling import ScalingConfig as ScalingConfig
