"""One eigenproblem on several GPUs of a host."""
