"""What a machine with a GPU and no internet needs to test and measure: bundle.sh here, then run_kernels.sh there."""
