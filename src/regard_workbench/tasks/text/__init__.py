"""Text: strings to ids and back.

Here stand vocabularies, parts and spelling of words, the cutting of long texts into windows, and what tasks share that
turn one text into another.
"""
