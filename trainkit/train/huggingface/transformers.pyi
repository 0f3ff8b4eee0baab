from trainkit.train.torch.transformers import TransformersReportCallback
from trainkit.train.torch.transformers import prepare_trainer as prepare_trainer

RayTrainReportCallback = TransformersReportCallback
