from trainkit._private import internal_api as internal_api
