"""The ops as C++ kernels on the CPU, on weights as they are stored. Imports no torch."""
