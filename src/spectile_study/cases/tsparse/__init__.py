"""Cases of tSparse."""
