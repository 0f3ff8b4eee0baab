"""Problems with known results, on which search is measured: functions of a configuration and a resource."""
