"""Commands of the command line, one function a file; cli.py registers them. Heavy modules are imported inside the functions."""
