"""The actions of ``railbus audit``: fold a request's events again, compare receipts, search, and check an archive."""
