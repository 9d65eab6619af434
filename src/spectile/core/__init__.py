"""What the four systems share: arrays, the device, memory, compiling and launching kernels, files.

Importing it needs neither CuPy nor a GPU.
"""
