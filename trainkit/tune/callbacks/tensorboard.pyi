from trainkit.plugins.integrations.tensorboard import *
