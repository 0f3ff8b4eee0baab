from cloudpickle import *
