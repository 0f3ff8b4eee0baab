from trainkit.air import Result as Result
