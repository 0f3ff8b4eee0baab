from trainkit.tune.integrations import mlflow as mlflow
from trainkit.tune.integrations import wandb as wandb
