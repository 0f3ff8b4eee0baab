from trainkit.air import CheckpointConfig as CheckpointConfig
from trainkit.air import FailureConfig as FailureConfig
from trainkit.air import RunConfig as RunConfig
from trainkit.air import ScalingConfig as ScalingConfig
