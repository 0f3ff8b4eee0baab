"""Problems with known results, on which search is measured: pure functions of a configuration and a resource."""
