"""Judge recorded traffic again, under any policy: ``railbus audit rejudge``."""
