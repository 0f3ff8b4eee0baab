"""Problems with known results for measuring search: functions of a configuration and a resource."""
