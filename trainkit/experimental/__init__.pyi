from trainkit.experimental import tqdm_ray as tqdm_ray
