"""What judges the product: benchmarks, parity, evaluation, lowering, doctor. The product never imports it."""
