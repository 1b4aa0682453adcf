"""Machine code: compiled, kept on disk, loaded; what it computes is decided elsewhere."""
