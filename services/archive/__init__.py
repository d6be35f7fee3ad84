"""The archive: every record of every topic as Parquet files, chained by hashes and signed.

``chain`` and ``checkpoint`` have no I/O. ``records`` turns records into Arrow tables and back. ``store`` is the folder
or object store. ``writer`` appends, ``reader`` reads, ``verify`` finds changes. ``railbus audit find`` uses DuckDB.

pyarrow, duckdb and cryptography are the packages of the extra ``audit``. If one is missing, ``need`` raises an error
that names the remedy.
"""
