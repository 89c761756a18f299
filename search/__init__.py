"""Which candidate is best: strategies, measurement, the tuning database, partition by measured times."""
