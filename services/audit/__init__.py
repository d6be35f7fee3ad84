"""The archiver, a service that copies every record of every topic to an archive of Parquet files."""
