"""Judge recorded prompts again, under any policy: ``railbus audit rejudge``."""
