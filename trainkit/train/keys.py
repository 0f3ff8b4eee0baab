"""Keys of configurations and of results that operators, trainers and user code share."""

from __future__ import annotations

BATCH_SIZE = "*batch_size"
"""In `config`: the global batch size. Each worker's operator finds its share under this key."""

NUM_SAMPLES = "num_samples"
"""In results of `train_batch` and `validate_batch`: the number of samples that the metrics are means of."""

BATCH_COUNT = "batch_count"
"""In results: number of steps in the epoch, equal on all workers."""

EPOCH = "epoch"
"""In results of `train`: number of epochs finished since the trainer was made or its state was loaded."""

PROFILE = "profile"
"""In results of a call with `profile=True`: seconds by name, such as "mean_fwd_s"."""

NUM_STEPS = "__num_steps__"
"""In the `info` of `train_epoch`: `num_steps` of the call."""

USE_FP16 = "__use_fp16__"
"""In the `info` of `train_epoch`: True if `precision` is "fp16"."""

SHOULD_STOP = "should_stop"
"""In results of `train` with Lightning: 1.0 if a callback asked to stop or `max_epochs` is over, else 0.0."""
