from trainkit.tune.store.reader import ExperimentReader as ExperimentReader
