"""Runs that are killed at any file-system call, on disks that fail, lose or invent; and every reader asked afterwards."""
