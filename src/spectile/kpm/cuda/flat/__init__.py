"""The product on CSR rows of unlike lengths whose rows of V are one load: threads take entries, not rows."""
