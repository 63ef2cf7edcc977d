"""What a machine with a GPU and no internet needs to test and measure the kernels: bundle.sh, then run_kernels.sh."""
