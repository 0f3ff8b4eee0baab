from trainkit.errors import TrainingFailedError as TrainingFailedError
from trainkit.train import collective as collective
from trainkit.train.keys import BATCH_SIZE as BATCH_SIZE
from trainkit.train.keys import NUM_SAMPLES as NUM_SAMPLES
from trainkit.train.operator import TrainingOperator as TrainingOperator
from trainkit.train.torch.context import TrainContext as TrainContext
from trainkit.train.torch.context import get_dataset_shard as get_dataset_shard
from trainkit.train.torch.context import report as report
from trainkit.train.torch.shards import DataConfig as DataConfig
from trainkit.train.torch.trainer import TorchTrainer as TorchTrainer
from trainkit.tune.config import CheckpointConfig as CheckpointConfig
from trainkit.tune.config import FailureConfig as FailureConfig
from trainkit.tune.config import RunConfig as RunConfig
from trainkit.tune.config import SyncConfig as SyncConfig
from trainkit.tune.core.checkpoint import Checkpoint as Checkpoint
from trainkit.tune.core.resources import ScalingConfig as ScalingConfig
from trainkit.tune.results.result import Result as Result
from trainkit.tune.trial.context import get_checkpoint as get_checkpoint
from trainkit.tune.trial.context import get_context as get_context

# Ray names two kinds of a failed run; here its cause tells them apart.
ControllerError = TrainingFailedError
WorkerGroupError = TrainingFailedError
