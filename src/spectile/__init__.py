"""spectile."""
