"""Tools that judge the product: benchmarks, parity, evaluation, lowering, doctor. The product never imports them."""
