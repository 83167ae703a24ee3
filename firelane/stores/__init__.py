"""Object stores to read from: S3 and what speaks like it, Google Cloud Storage, Azure, plain web servers."""
