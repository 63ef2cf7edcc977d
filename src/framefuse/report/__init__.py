"""What a run measured and decided: the report, its HTML page, and the bottleneck verdict."""
