"""SpAMM over several GPUs of a host."""
