"""The product on CSR rows of any length."""
