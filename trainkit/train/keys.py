"""Keys of configurations and of results that operators, trainers and user code share."""

from __future__ import annotations

BATCH_SIZE = "*batch_size"
"""Key in `config` for the global batch size. Each worker's operator finds its share under the same key."""

NUM_SAMPLES = "num_samples"
"""Key in a step's result for the number of samples over which the metrics are means."""

BATCH_COUNT = "batch_count"
"""Key in results for the number of steps in the epoch, equal on all workers."""

EPOCH = "epoch"
"""Key in results of `train` for the epochs finished since the trainer was made or its state was loaded."""

PROFILE = "profile"
"""Key in results of a call with `profile=True` for seconds by name, such as "mean_fwd_s"."""

NUM_STEPS = "__num_steps__"
"""Key in the `info` of `train_epoch` for the call's `num_steps`."""

USE_FP16 = "__use_fp16__"
"""Key in the `info` of `train_epoch` for a flag: True if `precision` is "fp16"."""

SHOULD_STOP = "should_stop"
"""Key in results with Lightning: 1.0 if a callback asked to stop or `max_epochs` is reached, else 0.0."""
