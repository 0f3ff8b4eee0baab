from trainkit.train.torch.options import TorchConfig as TorchConfig
from trainkit.train.torch.prepare import accelerate as accelerate
from trainkit.train.torch.prepare import backward as backward
from trainkit.train.torch.prepare import enable_reproducibility as enable_reproducibility
from trainkit.train.torch.prepare import get_device as get_device
from trainkit.train.torch.prepare import get_devices as get_devices
from trainkit.train.torch.prepare import prepare_data_loader as prepare_data_loader
from trainkit.train.torch.prepare import prepare_model as prepare_model
from trainkit.train.torch.prepare import prepare_optimizer as prepare_optimizer
from trainkit.train.torch.script import Launcher as Launcher
from trainkit.train.torch.script import RankStreams as RankStreams
from trainkit.train.torch.script import ScriptOptions as ScriptOptions
from trainkit.train.torch.trainer import DataParallelTrainer as DataParallelTrainer

TorchTrainer = DataParallelTrainer
