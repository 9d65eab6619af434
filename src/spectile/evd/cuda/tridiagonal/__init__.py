"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix, in float64."""
