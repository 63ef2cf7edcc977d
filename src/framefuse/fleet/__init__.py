"""Several GPUs of one host: a process each, one list of inputs."""
