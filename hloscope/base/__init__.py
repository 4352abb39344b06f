"""What every room stands on: errors and messages, units, documents, the cache, output. Imports no other room."""
