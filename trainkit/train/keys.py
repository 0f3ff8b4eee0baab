"""Keys of configurations and of results that operators, trainers and user code share."""

from __future__ import annotations

BATCH_SIZE = "*batch_size"
"""In `config`: the global batch size. Each worker's operator finds its own share under the same key."""

NUM_SAMPLES = "num_samples"
"""In what `train_batch` and `validate_batch` return: how many samples the metrics are means of."""

BATCH_COUNT = "batch_count"
"""In results: steps run in the epoch, the same on all workers."""

EPOCH = "epoch"
"""In results of `train`: epochs finished since the trainer was made or its state was loaded."""

PROFILE = "profile"
"""In results of a call with `profile=True`: seconds by name, such as "mean_fwd_s"."""

NUM_STEPS = "__num_steps__"
"""In the `info` of `train_epoch`: `num_steps` of the call."""

USE_FP16 = "__use_fp16__"
"""In the `info` of `train_epoch`: whether it trains with `precision="fp16"`."""

SHOULD_STOP = "should_stop"
"""In results of `train` with Lightning: 1.0 if a callback asked to stop or `max_epochs` is over, else 0.0."""
