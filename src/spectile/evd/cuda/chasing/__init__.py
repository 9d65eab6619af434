"""Bulge chasing (sb2st, Algorithm 2): a band to tridiagonal form."""
