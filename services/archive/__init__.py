"""Tamper-evident archive of Kafka records in Parquet files. It needs the extra ``audit``."""
