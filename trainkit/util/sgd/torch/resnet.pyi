from trainkit.compat.core.resnet import *
