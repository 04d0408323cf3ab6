"""Sound: wav files to samples, samples to log-mel frames, augmentation, and recordings with their transcripts."""
