"""The archive: every record of every topic as Parquet files, chained by hashes and signed.

``chain`` and ``checkpoint`` are pure. ``records`` turns records into Arrow tables and back. ``store`` is the folder or
object store. ``writer`` appends, ``reader`` reads, ``verify`` names what was changed. ``query`` searches with DuckDB.

pyarrow, duckdb and cryptography are the extra ``audit``; ``need`` raises a clear error where one is missing.
"""
