"""Keys of configurations and results, used by operators, trainers and user code."""

from __future__ import annotations

BATCH_SIZE = "*batch_size"
"""Key in `config` for the global batch size.

In an operator's configuration, the value of this key is the size of one worker's batch.
"""

NUM_SAMPLES = "num_samples"
"""Key in a step's result for the number of samples that the metrics are averaged over."""

BATCH_COUNT = "batch_count"
"""Key in results for the number of steps in the epoch, equal on all workers."""

EPOCH = "epoch"
"""Key in results of `train` for the number of finished epochs, including the epochs of a loaded state."""

PROFILE = "profile"
"""Key in results of a call with `profile=True` for a dictionary of durations in seconds."""

NUM_STEPS = "__num_steps__"
"""Key in the argument `info` of `train_epoch` for the `num_steps` of the call of `train`."""

USE_FP16 = "__use_fp16__"
"""Key in the argument `info` of `train_epoch` for a flag that is True if `precision` is "fp16"."""

SHOULD_STOP = "should_stop"
"""Key in results with Lightning. The value is 1.0 if a callback or `max_epochs` ends training, else 0.0."""
