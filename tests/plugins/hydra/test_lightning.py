"""A project of the usual kind: Hydra composes a Lightning module, its data and its trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from trainkit.tune import ResultGrid

FILES = {
    "src/module.py": """
        import lightning as L
        import torch


        class Module(L.LightningModule):
            def __init__(self, net, optimizer):
                super().__init__()
                self.net, self.optimizer = net, optimizer

            def training_step(self, batch, index):
                x, y = batch
                return torch.nn.functional.mse_loss(self.net(x), y)

            def validation_step(self, batch, index):
                self.log("val/loss", self.training_step(batch, index))

            def configure_optimizers(self):
                return self.optimizer(self.parameters())


        class Data(L.LightningDataModule):
            def __init__(self, batch_size):
                super().__init__()
                self.batch_size = batch_size
                x = torch.linspace(-1, 1, 64)[:, None]
                self.data = torch.utils.data.TensorDataset(x, 3 * x)

            def train_dataloader(self):
                return torch.utils.data.DataLoader(self.data, self.batch_size)

            val_dataloader = train_dataloader
    """,
    "src/train.py": """
        import hydra
        import lightning as L


        @hydra.main(version_base="1.3", config_path="../configs", config_name="train.yaml")
        def main(cfg):
            L.seed_everything(cfg.seed)
            model = hydra.utils.instantiate(cfg.model)
            trainer = hydra.utils.instantiate(cfg.trainer)
            trainer.fit(model, datamodule=hydra.utils.instantiate(cfg.data))
            return trainer.callback_metrics[cfg.optimized_metric].item()


        if __name__ == "__main__":
            main()
    """,
    "configs/train.yaml": """
        defaults: [_self_, data: line, model: linear, trainer: cpu, hparams_search: null]
        seed: 1
        optimized_metric: val/loss
    """,
    "configs/data/line.yaml": "{_target_: module.Data, batch_size: 16}",
    "configs/model/linear.yaml": """
        _target_: module.Module
        net: {_target_: torch.nn.Linear, in_features: 1, out_features: 1}
        optimizer: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1}
    """,
    "configs/trainer/cpu.yaml": """
        _target_: lightning.Trainer
        accelerator: cpu
        max_epochs: 2
        logger: false
        enable_progress_bar: false
        enable_model_summary: false
        default_root_dir: ${hydra:runtime.output_dir}
    """,
    # The settings are those that projects have for the sweeper of Optuna.
    "configs/hparams_search/search.yaml": """
        # @package _global_
        defaults:
          - override /hydra/sweeper: trainkit
        hydra:
          mode: MULTIRUN
          sweep: {dir: out}
          sweeper:
            storage: null
            study_name: null
            n_jobs: 2
            direction: minimize
            n_trials: 3
            sampler: {_target_: optuna.samplers.TPESampler, seed: 1234, n_startup_trials: 2}
            params:
              model.optimizer.lr: interval(0.0001, 0.5)
              data.batch_size: choice(8, 16, 32)
    """,
}


@pytest.mark.slow
def test_the_search_of_a_template_project_runs_with_one_line(tmp_path: Path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        path.write_text("\n".join(line[indent:] for line in lines))
    command = [sys.executable, "src/train.py", "hparams_search=search"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    results = ResultGrid.from_path(tmp_path / "out")
    best = results.get_best_result()
    found = OmegaConf.load(tmp_path / "out" / "optimization_results.yaml")
    assert found.best_params["model.optimizer.lr"] == best.config["model.optimizer.lr"]
    assert len(results) == 3
    for each in results:
        saved = OmegaConf.load(Path(each.path) / ".hydra" / "config.yaml")
        assert saved.data.batch_size == each.config["data.batch_size"]
        assert list((Path(each.path) / "checkpoints").glob("*.ckpt"))
