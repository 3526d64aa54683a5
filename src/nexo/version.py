"""The version of this package: the build, the image and every part that reports it read it here."""

__version__ = "0.3.0"
