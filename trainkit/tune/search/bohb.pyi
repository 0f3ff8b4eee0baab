from trainkit.plugins.searchers.bohb import *
from trainkit.plugins.searchers.bohb_model import *
