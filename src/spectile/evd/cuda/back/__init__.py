"""Back-transformation: eigenvectors of T to those of A, through the bulge chasing (Q2) and the band reduction (Q1)."""
