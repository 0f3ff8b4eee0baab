"""What has its home elsewhere, by the names of `ray.tune.execution`."""
