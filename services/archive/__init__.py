"""Tamper-evident archive of Kafka records in Parquet files.

The records of each partition form a hash chain, and each file contains a signed checkpoint. This package needs the
extra ``audit``.
"""
