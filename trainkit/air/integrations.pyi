from trainkit.plugins.integrations import mlflow as mlflow
from trainkit.plugins.integrations import wandb as wandb
