from trainkit.plugins.transformers.trainer import *
