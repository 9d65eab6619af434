"""Detached band reduction (sy2sb, Algorithm 1): a Hermitian matrix to a band."""
