"""What the four systems share: the device, compiling, arrays, files.  Importing it needs neither CuPy nor a GPU."""
