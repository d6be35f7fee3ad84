"""The arms of ``railbus bench engine``, and their runs."""
