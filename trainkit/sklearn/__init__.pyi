from trainkit.sklearn.halving import TuneHalvingGridSearchCV as TuneHalvingGridSearchCV
from trainkit.sklearn.halving import TuneHalvingRandomSearchCV as TuneHalvingRandomSearchCV
from trainkit.sklearn.search import TuneGridSearchCV as TuneGridSearchCV
from trainkit.sklearn.search import TuneSearchCV as TuneSearchCV
