"""The archiver: writes every record of every topic to an archive of Parquet files."""
