from trainkit.compat.state import *
