"""What the four systems share on CUDA: compiling, the device, launches.  Importing it needs neither CuPy nor a GPU."""
