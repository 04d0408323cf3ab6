"""Pictures of a comparison: one function a picture, each as vector graphics for a page and for a paper."""
