"""Keys of the values in a trial's report, under the names of `ray.tune.result`."""

from __future__ import annotations

# trainkit adds values under these keys to each report, unless the trial itself reports them.
TRAINING_ITERATION = "training_iteration"
TIME_THIS_ITER_S = "time_this_iter_s"
TIME_TOTAL_S = "time_total_s"
TIMESTAMP = "timestamp"
DONE = "done"
TRIAL_ID = "trial_id"
EXPERIMENT_TAG = "experiment_tag"
PID = "pid"
HOSTNAME = "hostname"
NODE_IP = "node_ip"

# Trials report these keys. If a trial reports a plain number and not a dictionary, the number is stored under
# the first key.
DEFAULT_METRIC = "_metric"
SHOULD_CHECKPOINT = "should_checkpoint"
TIMESTEPS_THIS_ITER = "timesteps_this_iter"
TIMESTEPS_TOTAL = "timesteps_total"
EPISODES_THIS_ITER = "episodes_this_iter"
EPISODES_TOTAL = "episodes_total"
EPISODE_REWARD_MEAN = "episode_reward_mean"
MEAN_ACCURACY = "mean_accuracy"
MEAN_LOSS = "mean_loss"
