from trainkit.sklearn.search import TuneGridSearchCV as TuneGridSearchCV
from trainkit.sklearn.search import TuneSearchCV as TuneSearchCV
