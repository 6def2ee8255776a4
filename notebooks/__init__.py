"""The lessons, numbered, stored with their outputs. Installed as ``paged_edu.notebooks`` so that ``paged-edu lab`` has them."""
