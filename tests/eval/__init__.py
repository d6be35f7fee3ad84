"""Detection quality of a policy on texts that ship in packages; see ``__main__``."""
