"""Formats: files to examples.

Here stand the readers of files and archives, what finds out which of them are for training, validation and testing,
and the plain records that readers return. Every reader treats a file as a stranger's, and says what is wrong with file
and line.
"""
