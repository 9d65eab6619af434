"""Cases of the eigensolver."""
