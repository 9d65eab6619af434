"""cuSOLVER, where it is faster than our stages: small matrices, and batches of them."""
