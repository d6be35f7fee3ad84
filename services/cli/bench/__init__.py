"""Configure and run the arms of ``railbus bench engine``, that is, the settings that it compares."""
