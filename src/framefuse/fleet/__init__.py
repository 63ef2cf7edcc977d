"""Several GPUs of one host: one process per GPU, one shared list of inputs."""
