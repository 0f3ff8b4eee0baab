"""Training libraries by the name of `ray.tune.integration`; at home in `trainkit.tune.integrations`."""
