from trainkit.tune.integrations import aim as aim
from trainkit.tune.integrations import comet as comet
from trainkit.tune.integrations import mlflow as mlflow
from trainkit.tune.integrations import wandb as wandb
