"""Runs that are killed at any file-system call, on disks that fail, forget or lie; every reader asked afterwards."""
