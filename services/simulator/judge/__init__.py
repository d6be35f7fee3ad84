"""Check the promises after every step (``oracle``) and at the end of a run (``ending``)."""
