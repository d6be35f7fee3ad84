"""The archiver, a service that writes every record of every topic to an archive of Parquet files."""
