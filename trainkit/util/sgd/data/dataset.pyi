from trainkit.compat.core.sgd_data import Dataset as Dataset
