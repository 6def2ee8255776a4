"""Data that ships with the package: the embedded model and the numbers that lessons and pictures start from. Installs as `paged_edu.data`."""
