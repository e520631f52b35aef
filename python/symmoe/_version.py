"""The one place that states the version; setuptools and CMake read this file as text."""

__version__ = "0.1.0"
