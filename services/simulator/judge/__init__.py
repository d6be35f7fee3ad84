"""What must hold: after every step (``oracle``), and at the end (``ending``)."""
