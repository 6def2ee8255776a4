"""The lessons; this folder installs as `paged_edu.notebooks`, from where `paged-edu lab` copies them."""
