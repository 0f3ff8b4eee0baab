from trainkit.train.torch.lightning import RayDDPStrategy as RayDDPStrategy
from trainkit.train.torch.lightning import RayDeepSpeedStrategy as RayDeepSpeedStrategy
from trainkit.train.torch.lightning import RayFSDPStrategy as RayFSDPStrategy
from trainkit.train.torch.lightning import RayLightningEnvironment as RayLightningEnvironment
from trainkit.train.torch.lightning import RayTrainReportCallback as RayTrainReportCallback
from trainkit.train.torch.lightning import prepare_trainer as prepare_trainer
