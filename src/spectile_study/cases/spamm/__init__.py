"""Cases of cuSpAMM."""
